"""Check and time an all-reduce over all ranks of a deployment. Each node runs this script once, in the model environment.

usage: python fabric_check.py SPEC.json

SPEC: {backend, bytes, deadline_s, address, port, nodes: [{name, interface, devices: [..]}], output}. SERVEMARK_NODE is this node's name.
Rank 0 writes {"seconds": median of one all-reduce, "ranks": N} to ``output``.
"""

import json
import os
import statistics
import subprocess
import sys
import time

REPEATS = 10


def main(path: str) -> int:
    """Start one process for each rank of this node and wait for all of them."""
    with open(path) as stream:
        spec = json.load(stream)
    mine = [node["name"] for node in spec["nodes"]].index(os.environ["SERVEMARK_NODE"])
    first, node = sum(len(node["devices"]) for node in spec["nodes"][:mine]), spec["nodes"][mine]
    # NCCL reads a name without "=" as a prefix.
    env = {"GLOO_SOCKET_IFNAME": node["interface"], "NCCL_SOCKET_IFNAME": f"={node['interface']}"} | dict(os.environ)
    ranks = [
        subprocess.Popen([sys.executable, __file__, path, str(first + local), str(local)], env=env) for local in range(len(node["devices"]))
    ]
    deadline = time.monotonic() + spec["deadline_s"] + 5
    while any(rank.poll() is None for rank in ranks):
        # The other ranks would wait for a failed one.
        if any(rank.poll() for rank in ranks) or time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(0.1)
    return max(abs(int(rank.returncode)) for rank in ranks)


def reduce(path: str, rank: int, local: int) -> None:
    """Run one rank: join the group, reduce, and compare the result with the expected sum."""
    import datetime

    import torch
    import torch.distributed as dist

    with open(path) as stream:
        spec = json.load(stream)
    world = sum(len(node["devices"]) for node in spec["nodes"])
    device = torch.device("cpu")
    if spec["backend"] == "nccl":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group(
        spec["backend"],
        init_method=f"tcp://{spec['address']}:{spec['port']}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=spec["deadline_s"]),
    )
    taken, expected = [], world * (world + 1) / 2
    for _ in range(REPEATS + 2):
        tensor = torch.full((spec["bytes"] // 4,), float(rank + 1), device=device)
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        if float(tensor[0]) != expected or float(tensor[-1]) != expected:  # float() also waits for the GPU
            raise SystemExit(f"rank {rank}: the all-reduce gives {float(tensor[0])}, not {expected}")
        taken.append(time.perf_counter() - begin)
    if rank == 0:
        with open(spec["output"], "w") as stream:
            json.dump({"seconds": statistics.median(taken[2:]), "ranks": world}, stream)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    reduce(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
