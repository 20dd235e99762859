"""Run by the model environment's interpreter: wait until the Ray cluster is what was asked for, then write what is there.

usage: python ray_gate.py ADDRESS NODES DEVICES DEADLINE_S OUTPUT
"""

import json
import platform
import sys
import time


def main(address: str, nodes: int, devices: int, deadline_s: float, output: str) -> int:
    import ray

    deadline = time.monotonic() + deadline_s
    seen = "no connection"
    while time.monotonic() < deadline:
        try:
            if not ray.is_initialized():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            alive = [node for node in ray.nodes() if node["Alive"]]
        except (ConnectionError, RuntimeError) as error:
            seen = f"cannot connect to {address}: {str(error).splitlines()[0]}"
            time.sleep(0.3)
            continue
        total = sum(int(node["Resources"].get("GPU", 0)) for node in alive)
        seen = f"{len(alive)} of {nodes} nodes, {total} of {devices} devices"
        if len(alive) == nodes and total == devices:
            facts = [
                {"host": n["NodeManagerHostname"], "address": n["NodeManagerAddress"], "devices": int(n["Resources"].get("GPU", 0)),
                 "ray": ray.__version__, "python": platform.python_version()}
                for n in alive
            ]  # fmt: skip
            with open(output, "w") as stream:
                json.dump({"nodes": facts}, stream)
            return 0
        time.sleep(0.3)
    print(seen)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]))
