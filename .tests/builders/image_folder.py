"""An image folder with this interpreter, a shell and the stand-in of vLLM, copied from this machine; small, so its digest is quick."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import standin

_LEFT_OUT = ("__pycache__", "site-packages", "test", "tests", "idlelib", "ensurepip", "lib2to3", "turtledemo", "tkinter", "config-*", "*.a")


def make_image(folder: Path) -> Path:
    """Make an image folder that any runtime starts: ``/usr/bin/python3`` finds stand-ins of vllm, torch and ray."""
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "usr/bin"):
        (folder / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    python, stdlib = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    inside = folder / "usr" / "lib" / stdlib.name
    shutil.copytree(stdlib, inside, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    shutil.copy2(python, folder / "usr/bin/python3")
    for name in ("sh", "sleep"):
        shutil.copy2(Path(shutil.which(name) or "").resolve(), folder / "bin" / name)
    _copy_libraries([python, Path("/bin/sh"), Path("/bin/sleep"), *inside.glob("lib-dynload/*.so")], folder)
    standin.install(inside / "site-packages")
    return folder


def _copy_libraries(programs: list[Path], folder: Path) -> None:
    """Copy the shared libraries of programs to the same paths, through links."""
    text = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    for name in sorted(set(re.findall(r"(/\S+\.so\S*) \(0x", text))):
        target = folder / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(Path(name).resolve(), target)
