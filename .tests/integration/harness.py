"""A checkout for one test, runs of the whole workflow in it, and checks that a run leaves nothing behind."""

from __future__ import annotations

import contextlib
import copy
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
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
from servemark.supervisor import process_request
from servemark.variables import passed_on

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
PARTS = ("Snakefile", "workflow", "plugins", "config", "envs", "profiles", "slurm")
RUN = "injured"
# After this time, no process of an ended run may be alive: 15 s on an idle machine.
GONE_S = 60.0


def copy_parts(destination: Path) -> None:
    """Copy the workflow's files, with their bytecode. Links would not do: rules and library are found next to the Snakefile."""
    for part in PARTS:
        source = ROOT / part
        if source.is_symlink():  # the profile: `snakemake --profile slurm`
            (destination / part).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, destination / part, ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
        else:
            shutil.copy2(source, destination / part)
    (destination / "results").mkdir()


def basic_config(prefix: Path, cache: Path) -> dict[str, Any]:
    """Return a configuration with two deployments of two load points each, on the stand-in, with short waits."""

    def deployment(length: int) -> dict[str, Any]:
        # Another length, so that the deployments have different ledger keys.
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
        # Loads of milliseconds on a machine that may be busy: a point can still be SUSPECT, so tests accept that too.
        "verdict": {
            "min_duration_s": 0.0, "min_requests_per_slot": 1.0, "max_burst_fraction": 0.9, "max_foreign_cpu": 1.0, "max_client_cpu": 0.9,
            "min_client_overlap": 0.5, "min_in_flight": 0.5,
        },
        "timeouts": {"cluster": 60.0, "start": 90.0, "stall": 60.0, "point": 120.0, "no_progress": 60.0, "stop": 3.0},
    }  # fmt: skip


def copy_living(source: Path, destination: Path) -> None:
    """Copy a folder in which processes write. Leave out files that are removed or renamed meanwhile."""

    def copy(file: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(file, target)

    shutil.copytree(source, destination, copy_function=copy)


def wait_until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.05) -> Any:
    """Poll until ``condition`` returns a true value, and return it; fail after ``seconds``. ``every``: pause between two polls, seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


@dataclass(frozen=True)
class Finished:
    """An ended run: exit code, output, seconds."""

    rc: int
    text: str
    seconds: float


class Running:
    """A running Snakemake, leader of its own process group, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path):
        self.process, self.output = process, output
        self.begin = time.monotonic()

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def interrupt(self, number: int, *, group: bool = False) -> None:
        """Signal the main process, or its whole group as a terminal does for Ctrl-C."""
        (os.killpg if group else os.kill)(self.process.pid, number)

    def wait(self, seconds: float) -> Finished:
        """Wait for the end; after the time limit, kill the run and fail with its output."""
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
        # Variables exported in the shell that starts Snakemake.
        self.exported: dict[str, str] = {}
        # A command that starts Snakemake in place of the shell.
        self.through: list[str] = []

    @property
    def results(self) -> Path:
        return self.path / "results" / RUN

    # Runs

    def start(self, *arguments: str, profile: bool = True, terminal: Terminal | None = None, **variables: str) -> Running:
        """Start Snakemake with the current configuration and these environment variables."""
        (self.path / "my.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))
        self._runs += 1
        output = self.path.parent / f"output-{self.path.name}-{self._runs}.txt"
        argv = [str(SNAKEMAKE), *(["--profile", "profiles/local"] if profile else []), "--configfile", "my.yaml"]
        # Nor variables of the developer's shell that would be in the ledger keys.
        ours = passed_on.deciding(os.environ, Topology(), {})
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("STANDIN_", "SERVEMARK_")) and key not in ours}
        defaults = {
            "STANDIN_START_S": "0.1",
            "STANDIN_TOKEN_S": "0.002",
            "SERVEMARK_RUNTIME_DIR": str(self.runtime),
            # The interpreter's servemark is that of the repository; this checkout's may have been edited.
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

    def run(self, *arguments: str, seconds: float = 480, **variables: str) -> Finished:
        """Run Snakemake to its end."""
        return self.start(*arguments, **variables).wait(seconds)

    def foretold(self, *targets: str) -> set[str]:
        """Return the jobs that a run would start now, as ``rule`` or ``rule/subject``."""
        done = self.run("-n", "--quiet", "host", "--", *targets)
        assert done.rc == 0, done.text
        return {_job(name) for name in re.findall(rf"^ +log: results/{RUN}/logs/(\S+)\.log$", done.text, re.MULTILINE)}

    def ran(self, since: float) -> set[str]:
        """Return the jobs that have begun since a time, in seconds since 1970, with names as in :meth:`foretold`."""
        logs = self.results / "logs"
        new = (path for path in logs.rglob("*.log") if path.stat().st_mtime >= since)
        return {_job(path.relative_to(logs).with_suffix("").as_posix()) for path in new}

    def keep(self, *deployments: str) -> None:
        """Keep only these deployments in the configuration."""
        self.config["deployments"] = {name: self.config["deployments"][name] for name in deployments}

    # Results of a run

    def progress(self) -> list[dict[str, Any]]:
        path = self.results / "progress.jsonl"
        # A process may be writing the last line.
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for_progress(self, text: str, *, subject: str | None = None, seconds: float = 180) -> dict[str, Any]:
        """Wait until a stage has printed ``text`` (about one deployment, environment or model)."""

        def said() -> dict[str, Any] | None:
            running = self.current is None or self.current.process.poll() is None
            lines = (line for line in self.progress() if subject in (None, line["subject"]))
            found = next((line for line in lines if text in line["text"]), None)
            assert found or running, f"the run ended and never printed {text!r}; it printed:\n{self.current and self.current.text}"
            return found

        return wait_until(said, seconds, f"progress {text!r}; there is {[line['text'] for line in self.progress()][-8:]}")

    def record(self, name: str) -> dict[str, Any]:
        """Return a record below the run's folder."""
        return json.loads((self.results / name).read_text())

    def points(self, deployment: str) -> dict[str, dict[str, Any]]:
        """Return the records of a deployment's load points by name."""
        folder = self.results / "deployments" / deployment / "points"
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*-r?.json")}

    def started_at(self, deployment: str) -> dict[str, str]:
        """Return when each point was measured. A rerun changes it only if it measures the point again."""
        return {name: record["started_at"] for name, record in self.points(deployment).items()}

    def rejected(self) -> dict[str, dict[str, Any]]:
        """Return the rejected records as ``deployment/point.N``."""
        folder = self.results / "rejected"
        return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in folder.glob("*/*.json")}

    def rows(self) -> dict[tuple[str, str], dict[str, str]]:
        """Return the table's rows by deployment and point."""
        with (self.results / "measurements.csv").open() as stream:
            return {(row["deployment"], row["point"]): row for row in csv.DictReader(stream)}

    def report(self) -> str:
        return (self.results / "report.html").read_text()

    def archived(self) -> dict[str, bytes]:
        """Return the archive's files by their path below its top folder."""
        plain = zstandard.decompress((self.results / "archive" / f"{RUN}.tar.zst").read_bytes())
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            return {m.name.partition("/")[2]: file.read() for m in tar if (file := tar.extractfile(m))}

    def key_file(self, seconds: float = 180) -> Path:
        """Wait until the first attempt of a deployment has an API key, and return its file. A new file is empty for a moment."""

        def written() -> Path | None:
            with contextlib.suppress(FileNotFoundError):  # its attempt has ended
                return next((path for path in self.results.glob("deployments/*/attempts/001/api-key") if path.stat().st_size), None)
            return None

        return wait_until(written, seconds, "a key")

    def attempts(self, deployment: str) -> list[Path]:
        return sorted((self.results / "deployments" / deployment / "attempts").glob("*"))

    def requests_served(self, deployment: str) -> int:
        """Return how many completions the servers of a deployment received, by their logs."""
        logs = [attempt / "server.log" for attempt in self.attempts(deployment)]
        return sum(log.read_text(errors="replace").count("POST /v1/completions") for log in logs if log.exists())

    def daemon(self, deployment: str, name: str = "server") -> dict[str, Any]:
        """Return the supervisor's record of a process of the latest attempt."""
        return json.loads((self.attempts(deployment)[-1] / "daemons" / f"{name}.json").read_text())

    def inject(self, fault: str, *, deployment: str = "a") -> None:
        """Give the deployment's stand-in a fault that can be changed at any time; it is not part of the ledger key."""
        path = self.path / f"fault-{deployment}"
        path.write_text(fault)
        self.config["deployments"][deployment]["variables"] = {"STANDIN_FAULT_FILE": str(path)}

    # Leftovers of a run

    def processes(self) -> list[psutil.Process]:
        """Return every living process of a run in this checkout: all inherit the name of its runtime folder."""
        mark = f"SERVEMARK_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                words = "\0".join(process.cmdline()).encode()
                # vLLM and Ray rename their processes, which overwrites the environment in /proc.
                inside = os.readlink(f"/proc/{process.pid}/cwd").startswith(str(self.path))
                ours = inside or mark in environment.split(b"\0") or f"{self.path}/".encode() in words
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return [process for process in found if process.pid != os.getpid()]

    def assert_all_dead(self, seconds: float = GONE_S) -> None:
        """Assert that within ``seconds`` no process, port, scratch folder, live record, secret or blocking lock of a run is left."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            words = [f"{p.pid} {' '.join(cmdline(p))[:160]}" for p in left]
            assert time.monotonic() < deadline, f"still alive after {seconds:.0f} s: {words}"
            time.sleep(0.1)
        # The lock file and the links to odd folders stay.
        stay = ("machine.lock", process_request.NAMES)
        assert [path.name for path in self.runtime.iterdir() if path.name not in stay] == []
        for state in self.results.glob("deployments/*/attempts/*/daemons/server.json"):
            argv = json.loads(state.read_text())["argv"]
            port = int(argv[argv.index("--port") + 1])
            # A server of another test may have the port by now.
            assert not any(begin < state.stat().st_mtime for begin in _listeners(port)), f"something listens on {port}"
        records = [self.results.glob(f"deployments/*/{name}.json") for name in ("cluster", "endpoint", "ready")]
        assert [str(path) for found in records for path in found] == []

    def secrets(self) -> list[Path]:
        return [p for name in ("api-key", "ray-token") for p in self.results.glob(f"deployments/*/attempts/*/{name}")]

    def digests(self, deployment: str) -> dict[str, str]:
        """Return the sha256 of every record and raw file of a deployment's points."""
        folder = self.results / "deployments" / deployment / "points"
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.json")}


def _job(log: str) -> str:
    return "/".join(log.removeprefix("deployments/").split("/")[:2])


def _listeners(port: int) -> list[float]:
    """Return when each process that listens on a port began."""
    found = [one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid]
    begun = []
    for pid in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            begun.append(psutil.Process(pid).create_time())
    return begun


def _default_signals() -> None:
    # A test run in the background ignores SIGINT, and its children inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
