"""Sample the GPUs of a node, or the load of its CPU cores, about once a second, with the model environment's interpreter.

usage: python gpu_watch.py FILE --gpus [POSITION[=REPLICA] ...]     needs pynvml (nvidia-ml-py) and the driver
       python gpu_watch.py FILE --cpu

``--gpus`` alone samples all visible GPUs. Positions count in CUDA_VISIBLE_DEVICES, and REPLICA has ranks on that GPU. FILE gets JSON lines.
The first one describes the node (``Header`` in servemark.measurement.samples) and, if nothing can be sampled, why (``fault``). Each other
line is a sample: ``t``, seconds since 1970 on the node's clock, and

* ``gpus``: for each GPU the values of ``GPU_VALUES``; null: the GPU does not report it.
* ``busy_s`` and ``own_s``: CPU seconds since the start on the cores of this process, of all processes and of the deployment's own; ``mhz``.

A process is the deployment's own if its environment has ``--mark``, if it writes its output below ``--folder``, or if it is ``--owner`` or
descends from an own process. Each line is written with an open and a close of the file: on NFS, other nodes see it only after the close.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
GPU_VALUES = ("power_w", "energy_j", "sm_mhz", "events", "temperature_c", "busy_percent", "memory_mib", "foreign", "unattributed")
# Frequencies of this many cores are read: reading those of all 256 cores of a node would take milliseconds.
MOST_FREQUENCIES = 8
_PROC = Path("/proc")


class Family:
    """The processes of a deployment on this node.

    Args:
        mark: NAME=VALUE, a variable of these processes.
        folders: below them, these processes write their output. vLLM and Ray overwrite the environment in /proc.
        owner: PID:START@HOST[,...] of processes whose descendants belong to the deployment, too; ignored on other hosts.
    """

    def __init__(self, mark: str = "", folders: list[str] | None = None, owner: str = ""):
        self.mark = mark.encode()
        self.folders = tuple(f"{folder.rstrip('/')}/" for folder in folders or ())
        owners = (one.partition("@") for one in owner.split(",") if one)
        self.owners = {tuple(map(int, process.split(":"))) for process, _, host in owners if host == socket.gethostname()}
        self._own: dict[int, bool] = {}
        self._seconds: dict[int, tuple[float, int]] = {}
        self.own_s = 0.0

    def owns(self, pid: int) -> bool | None:
        """Return whether a process belongs to the deployment; None if this process cannot see it."""
        if pid not in self._own:
            stat = _stat(pid)
            if stat is None:
                return None
            self._own[pid] = (pid, int(stat[19])) in self.owners or self._is_marked(pid) or (pid > 1 and bool(self.owns(int(stat[1]))))
        return self._own[pid]

    def _is_marked(self, pid: int) -> bool:
        # Ended processes cannot be read.
        with contextlib.suppress(OSError):
            try:
                if self.mark and self.mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                    return True
                return any(os.readlink(_PROC / str(pid) / "fd" / number).startswith(self.folders) for number in "12")
            except PermissionError:
                # Another user's process, or one outside of this process's container (user_namespaces(7)). The command line of a remote
                # agent, whose child each process on another node is, has the path of its request.
                words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
                return any(os.fsdecode(word).startswith(self.folders) for word in words)
        return False

    def forget_ended(self) -> None:
        """Forget ended processes, because Linux gives their ids to new ones."""
        living = {int(name) for name in os.listdir(_PROC) if name.isdigit()}
        self._own = {pid: own for pid, own in self._own.items() if pid in living}
        for pid in living - self._own.keys():
            self.owns(pid)

    def add_cpu(self) -> None:
        """Add the CPU time that the deployment's processes used since the last call to ``own_s``.

        The time of a process includes that of its ended children (fields 14 to 17 of /proc/PID/stat), so a child that ends is not lost.
        """
        self.forget_ended()
        now = {}
        for pid in [pid for pid, own in self._own.items() if own]:
            if stat := _stat(pid):
                now[pid] = (sum(map(int, stat[11:15])) / TICKS, int(stat[1]))
        if self._seconds:
            # The parent of an ended process has its time, but only own parents are counted.
            before = sum(used for pid, (used, parent) in self._seconds.items() if pid in now or parent in now)
            self.own_s += max(0.0, sum(used for used, _ in now.values()) - before)
        self._seconds = now


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on; None if this process cannot see it."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


class Cores:
    """The cores that this process may use, which are those of the job in a Slurm job."""

    def __init__(self, family: Family):
        self.family = family
        self.cores = sorted(os.sched_getaffinity(0))
        self.header = {"cores": len(self.cores)}
        step = max(1, len(self.cores) // MOST_FREQUENCIES)
        self._some = set(self.cores[::step])
        paths = [Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in self._some]
        self._frequencies = [path for path in paths if path.exists()]
        self._began = self._busy()

    def sample(self) -> dict[str, Any]:
        """Return the values of a sample."""
        self.family.add_cpu()
        return {"busy_s": round(self._busy() - self._began, 2), "own_s": round(self.family.own_s, 2), "mhz": self._mhz()}

    def _busy(self) -> float:
        """Return the seconds in which the cores were not idle (proc(5)), with the time that the hypervisor gave to others (steal)."""
        wanted, used = {f"cpu{core}" for core in self.cores}, 0.0
        with open("/proc/stat") as stream:
            for line in stream:
                name, *values = line.split()
                if name in wanted:
                    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, values)
                    used += user + nice + system + irq + softirq + steal
                elif not name.startswith("cpu"):
                    break
        return used / TICKS

    def _mhz(self) -> float | None:
        found: list[float] = []
        with contextlib.suppress(OSError, ValueError):
            found = [int(path.read_text()) / 1000 for path in self._frequencies]
        if not found:
            with contextlib.suppress(OSError, ValueError), open("/proc/cpuinfo") as stream:
                found = [float(line.partition(":")[2]) for line in stream if line.startswith("cpu MHz")]
        return round(sum(found) / len(found), 1) if found else None


class Gpus:
    """GPUs, read through NVML.

    Args:
        wanted: position -> replica with ranks there, or None; empty: all visible GPUs.

    Raises:
        ImportError: there is no pynvml.
        pynvml.NVMLError: there is no driver, or a GPU does not exist.
        IndexError: fewer GPUs are visible.
    """

    def __init__(self, family: Family, wanted: dict[int, str | None]):
        import pynvml

        self.nvml, self.family = pynvml, family
        pynvml.nvmlInit()
        visible = self._visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        chosen = wanted or dict.fromkeys(range(len(visible)))
        if absent := [position for position in chosen if position >= len(visible)]:
            raise IndexError(f"GPU {absent[0]} was asked for, but {len(visible)} GPUs are visible")
        self.handles = [visible[position] for position in chosen]
        self.mig = [bool((self._value("nvmlDeviceGetMigMode", handle) or [0])[0]) for handle in self.handles]
        self.header = {
            "driver": self._value("nvmlSystemGetDriverVersion"),
            "gpus": [
                {"position": position, "replica": replica, "mig": mig, **self._names(handle)}
                for (position, replica), handle, mig in zip(chosen.items(), self.handles, self.mig, strict=True)
            ],
        }

    def _names(self, handle: Any) -> dict[str, Any]:
        return {"uuid": self.nvml.nvmlDeviceGetUUID(handle), "name": self.nvml.nvmlDeviceGetName(handle)}

    def _visible(self, value: str | None) -> list[Any]:
        """Return the GPUs in the order of CUDA_VISIBLE_DEVICES, which NVML ignores. vLLM reads its numbers as NVML's, too."""
        nvml = self.nvml
        if value is None:
            return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        entries = [entry.strip() for entry in value.split(",") if entry.strip()]
        return [
            nvml.nvmlDeviceGetHandleByIndex(int(entry)) if entry.isdigit() else nvml.nvmlDeviceGetHandleByUUID(entry) for entry in entries
        ]

    def _value(self, name: str, *arguments: Any) -> Any:
        """Return the value of an NVML function; None if pynvml, the driver or the GPU does not have it, or the GPU is lost."""
        try:
            return getattr(self.nvml, name)(*arguments)
        except (AttributeError, self.nvml.NVMLError):
            return None

    def sample(self) -> dict[str, Any]:
        """Return the values of a sample."""
        self.family.forget_ended()
        return {"gpus": [self._gpu(handle, mig) for handle, mig in zip(self.handles, self.mig, strict=True)]}

    def _gpu(self, handle: Any, mig: bool) -> list[Any]:
        nvml, get = self.nvml, self._value
        # Power and energy are those of the physical GPU, which other users share if it is divided (MIG).
        power = None if mig else get("nvmlDeviceGetPowerUsage", handle)
        energy = None if mig else get("nvmlDeviceGetTotalEnergyConsumption", handle)
        events = get("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if events is None:
            # Its name before driver 535.
            events = get("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        busy, memory = get("nvmlDeviceGetUtilizationRates", handle), get("nvmlDeviceGetMemoryInfo", handle)
        return [
            None if power is None else power / 1000,
            None if energy is None else energy / 1000,
            get("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            events,
            get("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            None if busy is None else busy.gpu,
            None if memory is None else round(memory.used / 2**20),
            *self._others(handle),
        ]

    def _others(self, handle: Any) -> tuple[list[int], int]:
        """Return the ids of processes on the GPU that are not the deployment's, and how many cannot be attributed.

        NVML reports the ids of the host. If this process runs in another namespace of ids (a container), it sees none of them, not even
        its own deployment's. If it sees an own process on the GPU, an id that it cannot see is another user's: /proc hides them (hidepid).
        """
        found = {
            process.pid: self.family.owns(process.pid) for process in self._value("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        }
        foreign = sorted(pid for pid, own in found.items() if own is False)
        unseen = sorted(pid for pid, own in found.items() if own is None)
        return (sorted(foreign + unseen), 0) if True in found.values() else (foreign, len(unseen))


def write(path: Path, line: dict[str, Any]) -> None:
    """Append a line. A disk that refuses it for a time leaves a gap, which the reader finds."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        finally:
            os.close(handle)


def watch(path: Path, source: Gpus | Cores, interval_s: float) -> None:
    """Write a sample every ``interval_s`` seconds until a signal ends this process."""
    due = time.monotonic()
    while True:
        write(path, {"t": round(time.time(), 3), **source.sample()})
        now = time.monotonic()
        # After a suspension, samples are not made up for.
        due = max(due + interval_s, now)
        time.sleep(due - now)


def main(words: list[str]) -> int:
    """Sample until a signal comes; return the exit code: 3 if nothing can be sampled here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="gets the JSON lines")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpus", nargs="*", metavar="POSITION[=REPLICA]", help="sample these GPUs; none named: all visible ones")
    what.add_argument("--cpu", action="store_true", help="sample the load of the CPU cores")
    parser.add_argument("--node", default=socket.gethostname(), help="name of this node (default: its host name)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two samples (default 1)")
    parser.add_argument("--mark", default="", help="NAME=VALUE, a variable of the deployment's processes")
    parser.add_argument("--folder", action="append", help="folder of the output of the deployment's processes")
    parser.add_argument("--owner", default="", help="PID:START@HOST[,...]: they and their descendants are the deployment's, too")
    asked = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    family = Family(asked.mark, asked.folder, asked.owner)
    header = {"node": asked.node, "started": round(time.time(), 3), "interval_s": asked.interval, "kind": "cpu" if asked.cpu else "gpu"}
    source: Gpus | Cores
    try:
        if asked.cpu:
            source = Cores(family)
        else:
            wanted = (entry.partition("=") for entry in asked.gpus)
            source = Gpus(family, {int(position): replica or None for position, _, replica in wanted})
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        print(f"gpu_watch.py: nothing is sampled on {asked.node}: {fault}", file=sys.stderr, flush=True)
        write(asked.file, header | {"fault": fault})
        return 3
    write(asked.file, header | source.header)
    begin = time.monotonic()
    try:
        watch(asked.file, source, asked.interval)
    finally:
        used, seconds = time.process_time(), time.monotonic() - begin
        print(f"gpu_watch.py: used {used:.2f} s of CPU time in {seconds:.0f} s.", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
