"""The same results give the same archive, byte for byte, for every user, host, time and environment.

One sealing runs here and one in another process, because an interpreter reads time zone, locale and hash seed when it starts.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builders import archived_run
from builders.paths import LIBRARY, TESTS
from servemark.archive import contents

NOBODY = 65534
# Imports come first, because another user may not be able to read the folder of the interpreter.
SEAL = f"""
import os, platform, random, socket, sys
from pathlib import Path
from servemark.archive import contents
from servemark.report import gather, page, table
from builders import archived_run

umask, user, order, host, destination = sys.argv[1:]
os.umask(int(umask, 8))
if user:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
if order:
    real = contents.archived_files
    def shuffled(*arguments):
        files = list(real(*arguments).items())
        random.Random(order).shuffle(files)
        return dict(files)
    contents.archived_files = shuffled
if host:
    socket.gethostname = platform.node = lambda: host
    named = os.uname()
    os.uname = lambda: os.uname_result((named[0], host, *named[2:]))
info = contents.archive(Path("results/demo"), Path("envs"), Path(destination), os.environ)
print(info.manifest_sha256, os.getuid())
"""


@dataclass(frozen=True)
class Surroundings:
    """The differences between two sealings."""

    variables: dict[str, str] = field(default_factory=dict)
    umask: str = "022"
    order: str = ""
    host: str = ""
    touch: bool = False
    other_user: bool = False


OTHERS = {
    "time zone": Surroundings({"TZ": "Pacific/Kiritimati"}),
    "another time zone": Surroundings({"TZ": "America/St_Johns"}),
    "locale C": Surroundings({"LC_ALL": "C"}),
    # Text that is read or written without an explicit encoding fails here.
    "ASCII": Surroundings({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "umask, closed": Surroundings(umask="077"),
    "umask, open": Surroundings(umask="000"),
    "order": Surroundings({"PYTHONHASHSEED": "77"}, order="3"),
    "times and modes of files": Surroundings(touch=True),
    "host": Surroundings({"HOSTNAME": "elsewhere"}, host="elsewhere"),
    "user's name and home": Surroundings({"USER": "somebody", "LOGNAME": "somebody", "HOME": "/nowhere"}),
    "all at once": Surroundings(
        {"TZ": "Asia/Kathmandu", "LC_ALL": "POSIX", "PYTHONHASHSEED": "9", "USER": "nobody"}, "027", "5", "third", touch=True
    ),
    "another user": Surroundings(umask="077", touch=True, other_user=True),
}  # fmt: skip


@pytest.fixture
def checkout(run, tmp_path_factory):
    """Return a run in a readable folder, with non-ASCII names and texts."""
    run.write("logs/start_cluster/plain.log", "größer als λ\n")
    run.write("rejected/plain/chat-c1-r1.1.raw", "{}\n")
    run.edit_json("hardware.json", lambda hardware: hardware.update(os="Prozessor für alle: λ"))
    run.report()
    return run.root


def seal(checkout: Path, destination: Path, around: Surroundings) -> str:
    """Seal in another process and return the archive's identity."""
    destination.mkdir()
    if around.touch:
        dice = random.Random(7)
        for path in checkout.rglob("*"):
            os.utime(path, (dice.randrange(2_000_000_000),) * 2)
            if path.is_file():
                path.chmod(dice.choice([0o644, 0o444, 0o755, 0o664]))
    if around.other_user:
        destination.chmod(0o777)
        for parent in [checkout, *checkout.parents, destination, *destination.parents]:
            if parent.stat().st_uid == os.getuid() and parent != Path("/") and not parent.stat().st_mode & 0o005:
                parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", SEAL, around.umask, "other" if around.other_user else "", around.order, around.host,
         destination / "demo.tar.zst"],
        cwd=checkout, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": f"{LIBRARY}:{TESTS}"} | around.variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    identity, user = done.stdout.split()
    assert int(user) == (NOBODY if around.other_user else os.getuid())
    return identity


# These find most errors. The others (make test-full) find which difference caused one.
SHORT = ("ASCII", "all at once", "another user")


@pytest.mark.parametrize(
    "around",
    [pytest.param(around, id=name, marks=[] if name in SHORT else pytest.mark.full) for name, around in OTHERS.items()],
)
def test_same_run_gives_the_same_bytes(checkout, tmp_path, around):
    if around.other_user and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    here = contents.archive(checkout / "results" / "demo", checkout / "envs", tmp_path / "first" / "demo.tar.zst", {})
    assert seal(checkout, tmp_path / "second", around) == here.manifest_sha256
    for name in ("demo.tar.zst", "demo.tar.zst.sha256"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    path = tmp_path / "second" / "demo.tar.zst"
    assert archived_run.wrong(path) == [], "the archive has no problem"
    assert path.stat().st_mode & 0o777 == 0o644


def test_table_and_report_made_again_have_same_bytes(checkout):
    """Archives agree even if Snakemake made table and report again, for example after one was lost."""
    names = ("measurements.csv", "measurements.parquet", "report.html")
    folder = checkout / "results" / "demo"
    before = {name: digest(folder / name) for name in names}
    code = """
from pathlib import Path
from builders.archived_run import ArchivedRun
run = ArchivedRun.at(Path())
for name in ("measurements.csv", "measurements.parquet", "report.html"):
    (run.folder / name).unlink()
run.tabulate()
run.report()
"""
    # The PATH has no git.
    around = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "77", "HOSTNAME": "x", "PATH": "/nowhere"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, check=True, timeout=120,
        env=os.environ | around | {"PYTHONPATH": f"{LIBRARY}:{TESTS}"},
    )  # fmt: skip
    assert {name: digest(folder / name) for name in names} == before


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
