"""The sampler as a process: the file that it writes, with a stand-in of nvidia-ml-py and with this machine's CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.paths import ROOT
from servemark.environments import build
from servemark.measurement import samples
from servemark.processes import identity

SCRIPT = build.IN_MODEL_ENV / "gpu_watch.py"
SITE = ROOT / ".tests" / "standin" / "site"
SPIN = "import time\nuntil = time.monotonic() + 300\nwhile time.monotonic() < until: pass"
WAIT = "import time; time.sleep(300)"


class Sampler:
    """A started gpu_watch.py."""

    def __init__(self, folder: Path, *words: str, **variables: str):
        self.file, self.log = folder / "node.jsonl", folder / "sampler.log"
        argv = [sys.executable, str(SCRIPT), str(self.file), "--interval", "0.1", *words]
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(argv, stderr=stream, env=env | variables)

    @property
    def lines(self) -> list[dict]:
        # The sampler may be writing the last line.
        whole = self.file.read_text().rpartition("\n")[0] if self.file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def until(self, count: int) -> list[dict]:
        """Wait for ``count`` samples, end the sampler, return all samples."""
        deadline = time.monotonic() + 120
        while len(self.lines) < count + 1:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.process.terminate()
        assert self.process.wait(60) == 0
        return self.lines[1:]


@pytest.fixture
def sampler(tmp_path, killed_at_the_end):
    def start(*words: str, gpus: list[dict] | None = None, **variables: str) -> Sampler:
        if gpus is not None:
            (tmp_path / "nvml.json").write_text(json.dumps({"gpus": gpus}))
            variables |= {"PYTHONPATH": str(SITE), "STANDIN_NVML": str(tmp_path / "nvml.json")}
        return killed_at_the_end(Sampler(tmp_path, *words, **variables))

    return start


@pytest.fixture
def process(killed_at_the_end):
    """Starts a process that is this user's, with these variables."""

    def start(code: str, **variables: str) -> int:
        class Started:
            process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | variables)

        return killed_at_the_end(Started).process.pid

    return start


def test_samples_have_values_of_every_gpu(sampler):
    started = sampler("--gpus", "--node", "gn01", gpus=[{"uuid": "GPU-a", "power_w": 400.0, "events": 4}, {"uuid": "GPU-b", "busy": 0}])
    begin = time.time()
    found = started.until(12)
    header = started.lines[0]
    assert (header["node"], header["kind"], header["driver"]) == ("gn01", "gpu", "0.0.0+standin")
    assert [gpu["uuid"] for gpu in header["gpus"]] == ["GPU-a", "GPU-b"] and "fault" not in header
    assert abs(found[0]["t"] - begin) < 120 and found[1]["t"] - found[0]["t"] >= 0.09
    first, second = found[-1]["gpus"]
    assert (first[0], *first[2:]) == (400.0, 1980, 4, 60, 90, 1000, [], 0) and second[5] == 0
    energy, seconds = (found[-1]["gpus"][0][1] - found[0]["gpus"][0][1]), found[-1]["t"] - found[0]["t"]
    assert energy == pytest.approx(400.0 * seconds, rel=0.5), "joules"
    read = samples.read("gn01", started.file)
    assert read.header and len(read.times) == len(found) and read.gpus[0]["power_w"][0] == 400.0


def test_positions_count_in_visible_devices(sampler):
    every = [{"uuid": f"GPU-{letter}"} for letter in "abcd"]
    started = sampler("--gpus", "1=r1", "0=r0", gpus=every, CUDA_VISIBLE_DEVICES="3,GPU-b")
    started.until(1)
    assert [(gpu["uuid"], gpu["replica"]) for gpu in started.lines[0]["gpus"]] == [("GPU-b", "r1"), ("GPU-d", "r0")]


@pytest.mark.parametrize(
    ("words", "gpus", "fault"),
    [
        (("--gpus",), None, "ModuleNotFoundError"),
        (("--gpus", "2"), [{"uuid": "GPU-a"}], "IndexError"),
    ],
)
def test_node_that_cannot_be_sampled_has_a_fault(sampler, words, gpus, fault):
    started = sampler(*words, gpus=gpus)
    assert started.process.wait(60) == 3
    (header,) = started.lines
    assert header["fault"].startswith(fault) and header["fault"] in started.log.read_text()


def test_missing_driver_is_a_fault(sampler):
    started = sampler("--gpus", PYTHONPATH=str(SITE))
    assert started.process.wait(60) == 3
    assert started.lines[0]["fault"].startswith("NVMLError_LibraryNotFound")


def test_values_that_a_gpu_does_not_support_are_null(sampler):
    unsupported = ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetUtilizationRates"]
    found = sampler("--gpus", gpus=[{"uuid": "GPU-a", "unsupported": unsupported, "events": 1}]).until(1)
    # The older name of the clock events is there.
    assert found[0]["gpus"][0][:7] == [100.0, None, 1980, 1, 60, None, 1000]


def test_divided_gpu_has_neither_power_nor_energy(sampler):
    started = sampler("--gpus", gpus=[{"uuid": "GPU-a", "mig": True}])
    assert started.until(1)[0]["gpus"][0][:3] == [None, None, 1980] and started.lines[0]["gpus"][0]["mig"] is True


def test_only_processes_of_others_are_foreign(sampler, process, tmp_path):
    own, other = process(WAIT, SERVEMARK_ATTEMPT="/run/attempts/001"), process(WAIT)
    hidden = 2**22 + 1  # above the kernel's largest process id
    gpus = [{"uuid": "GPU-a", "pids": [own, other, hidden]}, {"uuid": "GPU-b", "pids": [own]}, {"uuid": "GPU-c", "pids": [hidden]}]
    found = sampler("--gpus", "--mark", "SERVEMARK_ATTEMPT=/run/attempts/001", gpus=gpus).until(2)
    assert [gpu[7:] for gpu in found[-1]["gpus"]] == [[[other, hidden], 0], [[], 0], [[], 1]]


@pytest.mark.parametrize("way", ["owner", "folder"])
def test_processes_without_mark_are_recognised(sampler, process, tmp_path, way):
    if way == "owner":
        pid, options = process(WAIT), ["--owner", str(identity.myself())]
    else:
        with (tmp_path / "server.log").open("w") as stream:
            child = subprocess.Popen([sys.executable, "-c", WAIT], stdout=stream)
        pid, options = child.pid, ["--folder", str(tmp_path)]
    other = os.getppid()
    try:
        found = sampler("--gpus", *options, gpus=[{"uuid": "GPU-a", "pids": [pid, other]}]).until(1)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert found[0]["gpus"][0][7] == [other]


@pytest.mark.parametrize("ours", [True, False])
def test_cpu_of_marked_processes_is_own(sampler, process, ours):
    started = sampler("--cpu", "--mark", "SERVEMARK_ATTEMPT=/a/001")
    # Its end is part of the samples: what an ended process used stays counted.
    pid = process(SPIN, **({"SERVEMARK_ATTEMPT": "/a/001"} if ours else {}))
    found = started.until(15)
    header, spent = started.lines[0], _cpu_seconds(pid)
    assert header["cores"] == len(os.sched_getaffinity(0)) and header["kind"] == "cpu"
    assert found[-1]["busy_s"] - found[0]["busy_s"] > 0.1
    own = found[-1]["own_s"]
    assert (0.02 < own <= spent + 0.05) if ours else own == 0.0


def test_time_of_an_ended_child_is_counted_once(sampler, process, tmp_path, wait_for):
    ended = tmp_path / "ended"
    code = (
        "import subprocess, sys, time\n"
        "for _ in range(5): subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.2: pass'])\n"
        f"open({str(ended)!r}, 'w').close(); time.sleep(300)"
    )
    started = sampler("--cpu", "--mark", "SERVEMARK_ATTEMPT=/a/001")
    pid = process(code, SERVEMARK_ATTEMPT="/a/001")
    wait_for(ended.exists)
    found = started.until(len(started.lines) + 2)
    assert found[-1]["own_s"] == pytest.approx(_cpu_seconds(pid), abs=0.15)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_sampler_uses_less_than_a_tenth_of_a_core(sampler, wait_for):
    started = sampler("--cpu", "--interval", "1")
    wait_for(lambda: len(started.lines) > 1)
    # Without the start of Python.
    begin, start = _cpu_seconds(started.process.pid), len(started.lines)
    wait_for(lambda: len(started.lines) >= start + 3)
    assert _cpu_seconds(started.process.pid) - begin < 0.3, "about 0.02 s on an idle machine"
    started.until(1)
    assert "used " in started.log.read_text()
