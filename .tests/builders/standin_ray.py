"""A Ray for the stand-in environment: a head that stays or ends, and a client with responses that a test sets."""

from __future__ import annotations

from builders.places import site_packages
from servemark.records import Environment

NODE = {
    "Alive": True,
    "NodeManagerHostname": "node01",
    "NodeManagerAddress": "127.0.0.1",
    "Resources": {"CPU": 2.0, "GPU": 2.0},
}
# A head listens at its configured address; a worker connects to a head and does not listen.
LIVES = """
import socket, time
told = dict(word.partition('=')[::2] for word in sys.argv)
if '--port' in told:
    listener = socket.create_server((told['--node-ip-address'], int(told['--port'])))
print('Ray runtime started.', flush=True)
time.sleep(300)
"""
DIES = "print('RuntimeError: the redis port is in use'); sys.exit(4)"
_GROUPS = """
def placement_group_table():
    waiting = {'state': 'PENDING', 'bundles': {0: {'GPU': 8.0}, 1: {'GPU': 1.0}}}
    return {'a': waiting, 'b': {'state': 'CREATED', 'bundles': {0: {'GPU': 1.0}}}}
"""
_STARTS = """
import json, os, sys
seen = {'env': dict(os.environ), 'argv': sys.argv}
name = 'seen.json'
if node := os.environ.get('SERVEMARK_NODE'):
    name = f"seen-{'head' if '--head' in sys.argv else 'worker'}-{node}.json"
json.dump(seen, open(os.path.join(os.environ['RAY_TMPDIR'], name), 'w'))
"""


def put_ray(environment: Environment, head: str = LIVES, nodes: str = "[]", connects: str = "") -> None:
    """Let ``ray start`` run ``head``, ``ray.nodes()`` return ``nodes``, and each connecting client run ``connects``."""
    package = site_packages(environment) / "ray"
    (package / "scripts").mkdir()
    (package / "scripts" / "__init__.py").touch()
    (package / "scripts" / "scripts.py").write_text(_STARTS + head)
    (package / "__init__.py").write_text(
        f"__version__ = '0.0.0+standin'\nimport time\n_begin = time.monotonic()\n_up = []\n"
        f"def is_initialized(): return bool(_up)\n"
        f"def init(**options):\n    {connects or 'pass'}\n    _up.append(options)\n"
        f"def nodes(): return {nodes}\n"
        "def cluster_resources(): return {'CPU': 4.0, 'GPU': 2.0, 'node:127.0.0.1': 1.0}\n"
        "def available_resources(): return {'CPU': 4.0, 'node:127.0.0.1': 1.0}\n"
    )
    (package / "util").mkdir()
    (package / "util" / "__init__.py").touch()
    (package / "util" / "placement_group.py").write_text(_GROUPS)
