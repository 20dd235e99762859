"""A checkout of one's own, runs of the whole workflow in it, and the question whether anything of a run is left."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
import zstandard

from builders.terminal import Terminal
from servemark.records import Topology
from servemark.supervisor import plain_names
from servemark.variables import inherited

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
PARTS = ("Snakefile", "workflow", "plugins", "config", "envs", "profiles")
RUN = "injured"
# Nothing of ours may run this long after a run has ended, whatever ended it.
GONE_S = 15.0


def copy_parts(destination: Path) -> None:
    """The workflow's own files. Copies, not links: Snakemake finds the rules, and we the library, beside the Snakefile."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, destination / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, destination / part)
    (destination / "results").mkdir()


def basic_config(prefix: Path, cache: Path) -> dict[str, Any]:
    """Two deployments with two load points each, on the stand-in; every wait is short."""

    def deployment(length: int) -> dict[str, Any]:
        # Another length, so that the ledger does not take one deployment's figures for the other's.
        return {"model": "tiny", "environment": "standin", "options": {"max-model-len": length}}

    return {
        "run": RUN,
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"standin": {"prefix": str(prefix)}},
        "deployments": {"a": deployment(512), "b": deployment(256)},
        "workloads": {
            "chat": {"dataset": "random", "input_tokens": 8, "output_tokens": 4, "requests": 6, "concurrency": [1, 2], "warmups": 1}
        },
        "cache": str(cache),
        # Short, and on a machine that does other things meanwhile: what that does to a figure is not what these tests are about.
        "verdict": {"min_duration_s": 0.0, "min_requests_per_slot": 0.0, "max_burst_fraction": 1.0},
        "timeouts": {"cluster": 20.0, "start": 30.0, "stall": 20.0, "point": 60.0, "no_progress": 20.0, "stop": 3.0},
    }  # fmt: skip


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll until ``condition`` gives something true, and give that; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


@dataclass(frozen=True)
class Finished:
    """How a run ended: exit code, all that it printed, seconds."""

    rc: int
    text: str
    seconds: float


class Running:
    """A started Snakemake, the leader of its own process group, its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path):
        self.process, self.output = process, output
        self.begin = time.monotonic()

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def interrupt(self, number: int, *, group: bool = False) -> None:
        """Signal the main process, or its whole group, as a terminal does for Ctrl-C."""
        (os.killpg if group else os.kill)(self.process.pid, number)

    def wait(self, seconds: float) -> Finished:
        """Wait for the end; when it does not come, kill the run and fail with what it said."""
        try:
            rc = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"the run did not end within {seconds:.0f} s; it said:\n{self.text}") from None
        return Finished(rc, self.text, time.monotonic() - self.begin)


class Checkout:
    """One checkout with its own results, ``.snakemake``, configuration and runtime folder."""

    def __init__(self, path: Path, runtime: Path, config: dict[str, Any]):
        self.path, self.runtime, self.config = path, runtime, copy.deepcopy(config)
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._runs = 0
        self.current: Running | None = None
        # What the shell that starts Snakemake has exported.
        self.exported: dict[str, str] = {}
        # What starts Snakemake in place of the shell: a command before its own.
        self.through: list[str] = []

    @property
    def results(self) -> Path:
        return self.path / "results" / RUN

    # Runs

    def start(self, *arguments: str, profile: bool = True, terminal: Terminal | None = None, **variables: str) -> Running:
        """Start Snakemake with the present configuration; ``variables`` are environment variables of everything it starts."""
        (self.path / "my.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))
        self._runs += 1
        output = self.path.parent / f"output-{self.path.name}-{self._runs}.txt"
        argv = [str(SNAKEMAKE), *(["--profile", "profiles/local"] if profile else []), "--configfile", "my.yaml"]
        # Nor what of the developer's own shell would be in the ledger's keys.
        ours = inherited.deciding(os.environ, Topology(), {})
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("STANDIN_", "SERVEMARK_")) and key not in ours}
        defaults = {
            "STANDIN_START_S": "0.1",
            "STANDIN_TOKEN_S": "0.002",
            "SERVEMARK_RUNTIME_DIR": str(self.runtime),
            # The interpreter's own servemark is that of the checkout under test; this one may have been edited.
            "PYTHONPATH": str(self.path / "workflow" / "lib"),
        }
        with output.open("wb") as stream:
            ends = terminal.ends() if terminal else {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(
                [*self.through, *argv, *arguments], cwd=self.path, env=kept | defaults | self.exported | variables,
                **ends, start_new_session=True, preexec_fn=_default_signals,
            )  # fmt: skip
        self.current = Running(process, output)
        return self.current

    def run(self, *arguments: str, seconds: float = 240, **variables: str) -> Finished:
        """Run Snakemake to its end."""
        return self.start(*arguments, **variables).wait(seconds)

    def foretold(self, *targets: str) -> set[str]:
        """The jobs that a run would have now, as ``rule`` or ``rule/subject``."""
        done = self.run("-n", "--quiet", "host", "--", *targets)
        assert done.rc == 0, done.text
        return {_job(name) for name in re.findall(rf"^ +log: results/{RUN}/logs/(\S+)\.log$", done.text, re.MULTILINE)}

    def ran(self, since: float) -> set[str]:
        """The jobs that have begun since a moment, in seconds since 1970; named as by :meth:`foretold`."""
        logs = self.results / "logs"
        new = (path for path in logs.rglob("*.log") if path.stat().st_mtime >= since)
        return {_job(path.relative_to(logs).with_suffix("").as_posix()) for path in new}

    def keep(self, *deployments: str) -> None:
        """Leave only these deployments in the configuration."""
        self.config["deployments"] = {name: self.config["deployments"][name] for name in deployments}

    # What a run has left

    def progress(self) -> list[dict[str, Any]]:
        path = self.results / "progress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_progress(self, text: str, *, subject: str | None = None, seconds: float = 60) -> dict[str, Any]:
        """Wait until a stage has said ``text`` (of one deployment, environment or model)."""

        def said() -> dict[str, Any] | None:
            running = self.current is None or self.current.process.poll() is None
            lines = (line for line in self.progress() if subject in (None, line["subject"]))
            found = next((line for line in lines if text in line["text"]), None)
            assert found or running, f"the run ended and never said {text!r}; it said:\n{self.current and self.current.text}"
            return found

        return wait_until(said, seconds, f"progress {text!r}; there is {[line['text'] for line in self.progress()][-8:]}")

    def record(self, name: str) -> dict[str, Any]:
        """One record below the run's folder."""
        return json.loads((self.results / name).read_text())

    def points(self, deployment: str) -> dict[str, dict[str, Any]]:
        """The records of a deployment's load points by their names."""
        folder = self.results / "deployments" / deployment / "points"
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*-r?.json")}

    def started_at(self, deployment: str) -> dict[str, str]:
        """When each point was measured: the same after a rerun if and only if it was not measured again."""
        return {name: record["started_at"] for name, record in self.points(deployment).items()}

    def rejected(self) -> dict[str, dict[str, Any]]:
        """The rejected records as ``deployment/point.N``."""
        folder = self.results / "rejected"
        return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in folder.glob("*/*.json")}

    def rows(self) -> dict[tuple[str, str], dict[str, str]]:
        """The table's rows by deployment and point."""
        with (self.results / "measurements.csv").open() as stream:
            return {(row["deployment"], row["point"]): row for row in csv.DictReader(stream)}

    def report(self) -> str:
        return (self.results / "report.html").read_text()

    def archived(self) -> dict[str, bytes]:
        """The archive's files by their names below its top folder."""
        plain = zstandard.decompress((self.results / "archive" / f"{RUN}.tar.zst").read_bytes())
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            return {m.name.partition("/")[2]: file.read() for m in tar if (file := tar.extractfile(m))}

    def attempts(self, deployment: str) -> list[Path]:
        return sorted((self.results / "deployments" / deployment / "attempts").glob("*"))

    def requests_served(self, deployment: str) -> int:
        """Completions that all servers of a deployment answered or were asked, as their logs count them."""
        logs = [attempt / "server.log" for attempt in self.attempts(deployment)]
        return sum(log.read_text(errors="replace").count("POST /v1/completions") for log in logs if log.exists())

    def daemon(self, deployment: str, name: str = "server") -> dict[str, Any]:
        """The keeper's record of a process of the latest attempt."""
        return json.loads((self.attempts(deployment)[-1] / "daemons" / f"{name}.json").read_text())

    def inject(self, fault: str, *, deployment: str = "a") -> None:
        """Give the deployment's stand-in a fault that can be changed at any time; it does not enter the ledger's key."""
        path = self.path / f"fault-{deployment}"
        path.write_text(fault)
        self.config["deployments"][deployment]["variables"] = {"STANDIN_FAULT_FILE": str(path)}

    # What must not be left

    def processes(self) -> list[psutil.Process]:
        """Every living process that descends from a run in this checkout: all of them inherit its runtime folder's name."""
        mark = f"SERVEMARK_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                words = "\0".join(process.cmdline()).encode()
                # vLLM and Ray rename their processes, which overwrites the environment that the kernel shows.
                inside = os.readlink(f"/proc/{process.pid}/cwd").startswith(str(self.path))
                ours = inside or mark in environment.split(b"\0") or f"{self.path}/".encode() in words
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return [process for process in found if process.pid != os.getpid()]

    def assert_all_dead(self, seconds: float = GONE_S) -> None:
        """No process, no port, no scratch folder, no token, no secret of ours within ``seconds``; no lock that blocks."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            words = [f"{p.pid} {' '.join(_cmdline(p))[:160]}" for p in left]
            assert time.monotonic() < deadline, f"still alive after {seconds:.0f} s: {words}"
            time.sleep(0.1)
        # The lock, and plain names of odd folders, stay.
        stay = ("machine.lock", plain_names.FOLDER)
        assert [path.name for path in self.runtime.iterdir() if path.name not in stay] == []
        for state in self.results.glob("deployments/*/attempts/*/daemons/server.json"):
            argv = json.loads(state.read_text())["argv"]
            with socket.socket() as probe:
                port = int(argv[argv.index("--port") + 1])
                assert probe.connect_ex(("127.0.0.1", port)) != 0, f"something listens on {port}"
        tokens = [self.results.glob(f"deployments/*/{name}.json") for name in ("cluster", "endpoint", "ready")]
        assert [str(path) for found in tokens for path in found] == []

    def secrets(self) -> list[Path]:
        return [p for name in ("api-key", "ray-token") for p in self.results.glob(f"deployments/*/attempts/*/{name}")]

    def digests(self, deployment: str) -> dict[str, str]:
        """sha256 of every record and raw file of a deployment's points."""
        folder = self.results / "deployments" / deployment / "points"
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.json")}


def _job(log: str) -> str:
    return "/".join(log.removeprefix("deployments/").split("/")[:2])


def _default_signals() -> None:
    # A test run started in the background ignores SIGINT, and children inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
