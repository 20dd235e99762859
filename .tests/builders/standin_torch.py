"""The part of torch.distributed for the all-reduce, for the stand-in environment: ranks really sum over TCP."""

from __future__ import annotations

from builders.places import site_packages
from servemark.records import Environment

_DISTRIBUTED = '''
"""Stand-in of torch.distributed: rank 0 adds up. STANDIN_TORCH: wrong, dies:RANK, hangs:RANK."""

import os, socket, struct, sys, time

_peers, _me = [], {}


def init_process_group(backend, init_method, rank, world_size, timeout):
    fault, _, which = os.environ.get("STANDIN_TORCH", "").partition(":")
    if which == str(rank) and fault == "dies":
        sys.exit(f"RuntimeError: stand-in fault of rank {rank} ({backend})")
    if which == str(rank) and fault == "hangs":
        time.sleep(300)
    # In one write: the ranks share a log.
    os.write(1, f"interface {os.environ['GLOO_SOCKET_IFNAME']} {os.environ['NCCL_SOCKET_IFNAME']} rank {rank}\\n".encode())
    host, port = init_method.removeprefix("tcp://").split(":")
    end = time.monotonic() + timeout.total_seconds()
    _me.update(rank=rank, wrong=fault == "wrong")
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            listener.settimeout(timeout.total_seconds())
            _peers.extend(listener.accept()[0] for _ in range(world_size - 1))
        return
    while True:
        try:
            _peers.append(socket.create_connection((host, int(port)), timeout=timeout.total_seconds()))
            return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _hear(peer):
    return struct.unpack("d", peer.recv(8, socket.MSG_WAITALL))[0]


def all_reduce(tensor):
    mine = struct.pack("d", tensor.value)
    if _me["rank"] == 0:
        tensor.value += sum(_hear(peer) for peer in _peers) + _me["wrong"]
        for peer in _peers:
            peer.sendall(struct.pack("d", tensor.value))
    else:
        _peers[0].sendall(mine)
        tensor.value = _hear(_peers[0])


def barrier():
    pass


def destroy_process_group():
    pass
'''
_TENSOR = '''

class Filled:
    """A tensor of one value."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, _):
        return self.value


def full(shape, value, device):
    return Filled(value)


def device(kind, index=0):
    return (kind, index)
'''


def put_torch(environment: Environment) -> None:
    """Add torch.distributed to the stand-in environment."""
    package = site_packages(environment) / "torch"
    (package / "distributed.py").write_text(_DISTRIBUTED.lstrip())
    with open(package / "__init__.py", "a") as stream:
        stream.write(_TENSOR)
