"""client_server.py and run_clients.py as processes, with vLLM's client or a function in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

from servemark.environments.build import IN_MODEL_ENV

# Imports client_server.py and gives it a client that runs a text as a script.
FAKE_SERVER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import client_server
text = open(sys.argv[3]).read()
def load():
    while len(sys.argv) > 4 and not os.path.exists(sys.argv[4]):
        time.sleep(0.02)
    code = compile(text, sys.argv[3], "exec")
    return lambda argv: exec(code, {"__name__": "__main__"})
sys.exit(client_server.serve(sys.argv[2], load))
"""


class ClientServer:
    """A started client_server.py.

    Args:
        folder: for its socket, its log and the files of its points.
        fake: a script in the place of bench_client.py; None for bench_client.py.
        slow_load: the import of a fake client ends when this file exists.
        python: interpreter of the environment with vLLM's client.
    """

    def __init__(
        self, folder: Path, fake: str | None = None, python: str = sys.executable, slow_load: Path | None = None, **variables: str
    ):
        self.folder, self.python = folder, python
        self.socket, self.log = str(folder / "s.sock"), folder / "client-server.log"
        self.numbers = count()
        self.state = folder / "state.json"
        self.note()
        argv = [python, str(IN_MODEL_ENV / "client_server.py"), self.socket]
        if fake is not None:
            (folder / "fake.py").write_text(fake)
            argv = [
                python,
                "-c",
                FAKE_SERVER,
                str(IN_MODEL_ENV),
                self.socket,
                str(folder / "fake.py"),
                *([str(slow_load)] if slow_load else []),
            ]
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(argv, env=os.environ | variables, cwd=folder, stdout=stream, stderr=stream)

    def note(self, ended_at: str | None = None) -> None:
        """Write what the supervisor's record has."""
        self.state.write_text(json.dumps({"ended_at": ended_at, "log": str(self.log)}))


class Point:
    """A started run_clients.py. ``commands``: script and arguments of each process; ``samples``: another file for the CPU times."""

    def __init__(self, server: ClientServer, *commands: list[str], samples: str | None = None, **variables: str):
        number = next(server.numbers)
        self.log, self.samples_file = server.folder / f"point-{number}.log", server.folder / f"samples-{number}.json"
        order = server.folder / f"order-{number}.json"
        processes = [[server.python, *command] for command in commands]
        order.write_text(json.dumps({"processes": processes, "variables": variables, "samples": samples or str(self.samples_file)}))
        argv = [server.python, str(IN_MODEL_ENV / "run_clients.py"), server.socket, str(server.state), str(order)]
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(argv, stdout=stream, stderr=stream)
