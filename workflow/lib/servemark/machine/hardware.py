"""Probe the machine on which the model will run."""

import contextlib
import csv
import io
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from servemark.errors import ServemarkError
from servemark.machine import visible_gpus
from servemark.records import Gpu, Hardware, Interface, utc_now

FIELDS = ("name", "memory.total", "uuid", "driver_version", "power.limit", "ecc.mode.current", "mig.mode.current")
QUERY = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
# The second one is that of machines without DMI, such as Arm boards.
NODE_MODEL = ("/sys/class/dmi/id/product_name", "/proc/device-tree/model")


_MODES = {"Enabled": True, "Disabled": False}


def parse_gpus(text: str, host_mib: int) -> tuple[tuple[Gpu, ...], str | None]:
    """Return GPUs and driver version from the output of :data:`QUERY` (memory in MiB, power in W).

    Args:
        host_mib: the machine's memory, for a GPU without its own memory (GB10: nvidia-smi prints ``[N/A]``).

    Raises:
        ServemarkError: nvidia-smi hides the GPU's memory, as in a container with a MIG slice.
    """
    gpus: list[Gpu] = []
    driver = None
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(FIELDS):
            continue
        name, memory, uuid, driver, power, ecc, mig = (cell.strip() for cell in row)
        if found := re.match(r"\d+", memory):
            mib = int(found[0])
        elif memory.strip("[]") in ("N/A", "Not Supported"):
            mib = host_mib
        else:
            raise ServemarkError(
                f"nvidia-smi reports no memory size for {name}: {memory!r}. This usually means that a MIG slice was allocated.",
                do="Allocate a whole GPU: servemark does not measure MIG slices.",
                reason="gpu_part_named",
            )
        watts = float(power) if re.fullmatch(r"[\d.]+", power) else None
        modes = {"ecc": _MODES.get(ecc), "mig": _MODES.get(mig)}
        gpus.append(Gpu(name=name, memory_mib=mib, uuid=uuid, index=len(gpus), power_limit_w=watts, **modes))
    return tuple(gpus), driver


def parse_nvlinks(text: str) -> dict[str, int]:
    """Return the number of active NVLinks by the GPU's UUID, from ``nvidia-smi nvlink -s``: a line with a speed for each."""
    found: dict[str, int] = {}
    for gpu in re.split(r"^(?=GPU \d+:)", text, flags=re.MULTILINE):
        if uuid := re.search(r"UUID: (GPU-[\w-]+)", gpu):
            found[uuid[1]] = len(re.findall(r"^\s*Link \d+: [\d.]+ GB/s", gpu, re.MULTILINE))
    return found


def parse_cuda(text: str) -> str | None:
    """Return the highest CUDA version that the driver supports, from nvidia-smi's header."""
    found = re.search(r"CUDA(?: UMD)? Version:\s*([\d.]+)", text)
    return found.group(1) if found else None


def parse_cpu_model(text: str) -> str:
    """Return the CPU's name from /proc/cpuinfo, on Arm its part number."""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE) or re.search(r"^CPU (part)\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None:
        return platform.machine()
    return found[1].strip() if found.lastindex == 1 else f"{platform.machine()} part {found[2].strip()}"


def node_model(paths: Sequence[str] = NODE_MODEL) -> str | None:
    """Return the machine's product name from the first of these files that has one."""
    for path in paths:
        with contextlib.suppress(OSError):
            if name := Path(path).read_text(errors="replace").strip("\0 \n"):
                return name
    return None


def interfaces() -> tuple[Interface, ...]:
    """Return this machine's IPv4 addresses by interface, loopback included."""
    stats = psutil.net_if_stats()
    return tuple(
        # psutil returns 0 for a speed that the driver does not report.
        Interface(name=name, address=address.address, speed_mbit=(stats[name].speed or None) if name in stats else None)
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if address.family == socket.AF_INET
    )


def plain(text: str) -> str:
    """Return text without the terminal's codes, which nvidia-smi writes into files too."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _output(argv: list[str]) -> str:
    return plain(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout)


def probe() -> Hardware:
    """Return this machine's hardware, with the GPUs that this process may use.

    Raises:
        ServemarkError: nvidia-smi fails, as with a broken driver, or :func:`servemark.machine.visible_gpus.choose` refuses.
    """
    every: tuple[Gpu, ...] = ()
    driver = cuda = topology = None
    if shutil.which("nvidia-smi"):
        try:
            every, driver = parse_gpus(_output(QUERY), int(psutil.virtual_memory().total / 2**20))
            cuda = parse_cuda(_output(["nvidia-smi"]))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise ServemarkError(
                f"nvidia-smi does not work: {error}",
                do="Ask your administrators to repair the driver. On a machine without a GPU remove nvidia-smi from the PATH.",
                reason="nvidia_smi_failed",
            ) from None
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            topology = _output(["nvidia-smi", "topo", "-m"])
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            nvlinks = parse_nvlinks(_output(["nvidia-smi", "nvlink", "-s"]))
            every = tuple(gpu.model_copy(update={"nvlinks": nvlinks.get(gpu.uuid or "")}) for gpu in every)
    gpus = visible_gpus.choose(every, os.environ, socket.gethostname())
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return Hardware(
        accelerator="cuda" if gpus else "cpu",
        host=socket.gethostname(),
        cpu_model=parse_cpu_model(Path("/proc/cpuinfo").read_text()),
        cpu_count=len(os.sched_getaffinity(0)),
        cpus_online=os.cpu_count(),
        node_model=node_model(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 2),
        shm_gib=round(shutil.disk_usage("/dev/shm").total / 2**30, 2) if Path("/dev/shm").exists() else 0.0,
        architecture=platform.machine(),
        kernel=platform.release(),
        os=release.get("PRETTY_NAME", platform.system()),
        glibc=platform.libc_ver()[1],
        gpus=gpus,
        hidden_gpus=len(every) - len(gpus),
        cuda_visible_devices=os.environ.get(visible_gpus.VARIABLE),
        driver=driver,
        cuda=cuda,
        gpu_topology=topology,
        interfaces=interfaces(),
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        nproc=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        probed_at=utc_now(),
    )
