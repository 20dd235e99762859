"""Stand-in of torch.distributed: rank 0 sums the numbers, over TCP."""

import json
import socket
import time
from urllib.parse import urlsplit

_peers = []
_rank = 0


def init_process_group(_backend, init_method, rank, world_size, timeout):
    global _rank
    _rank = rank
    url = urlsplit(init_method)
    deadline = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        with socket.create_server((url.hostname, url.port)) as listener:
            listener.settimeout(timeout.total_seconds())
            _peers.extend(listener.accept()[0].makefile("rw") for _ in range(world_size - 1))
        return
    while True:
        try:
            _peers.append(socket.create_connection((url.hostname, url.port), timeout=60).makefile("rw"))
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def all_reduce(tensor):
    if _rank == 0:
        rows = [tensor.values, *(json.loads(peer.readline()) for peer in _peers)]
        tensor.values = [sum(column) for column in zip(*rows, strict=True)]
    _tell(tensor.values)
    if _rank:
        tensor.values = json.loads(_peers[0].readline())


def barrier():
    from torch import zeros

    all_reduce(zeros(1))


def destroy_process_group():
    while _peers:
        _peers.pop().close()


def _tell(values):
    for peer in _peers:
        peer.write(json.dumps(values) + "\n")
        peer.flush()
