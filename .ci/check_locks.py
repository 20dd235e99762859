"""Every list in envs/ still resolves with its hashes, for every interpreter and machine that it was made for.

No wheel is downloaded: the index's pages name every file's hash, and say for which interpreter and machine it is. Neither pip nor uv
looks at hashes when it only resolves, so the hashes are compared here. Asks of the index what uv asks (envs/uv), and what has a
local version such as ``+cpu`` is asked by pip, which alone knows where that lies.

usage: python check_locks.py [LIST ...]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from servemark.environments import lockfiles

ROOT = Path(__file__).resolve().parents[1]
ENVS = ROOT / "envs"
LISTS = ("workflow", "test", "accuracy", *lockfiles.NAMES)
UV = [str(ENVS / "uv"), "--quiet", "--no-python-downloads"]
ENTRY = re.compile(r"^(?P<pin>[\w.-]+==\S+).*\\\n(?P<hashes>(?:\s+--hash=.*\n)+)", re.MULTILINE)


def entries(text: str) -> dict[str, set[str]]:
    """Return the hashes of each ``name==version``."""
    return {found["pin"]: set(re.findall(r"sha256:(\w+)", found["hashes"])) for found in ENTRY.finditer(text)}


def run(argv: list[str]) -> str:
    """Run a tool and return its standard output; raise with its standard error if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    if done.returncode != 0:
        raise RuntimeError(" ".join(done.stderr.split())[:500])
    return done.stdout


def targets(name: str) -> list[tuple[str, str]]:
    """Return (platform, Python) of every machine and interpreter, as uv spells them."""
    lock = (lockfiles.table(ENVS) | lockfiles.of_setup(ENVS) | {"accuracy": lockfiles.accuracy(ENVS)})[name]
    spelled = [f"{machine}-manylinux_{lock.glibc[0]}_{lock.glibc[1]}" for machine in lock.machines]
    return [(platform, f"{major}.{minor}") for platform in spelled for major, minor in lock.pythons]


def not_offered(public: Path) -> list[str]:
    """Hashes of the list that the index does not offer any more."""
    listed = entries(public.with_suffix(".all").read_text())
    again = public.with_suffix(".again")
    argv = [*UV, "pip", "compile", "--universal", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    run([*argv, "--python-version", "3.11", str(public), "--output-file", str(again)])
    offered = entries(again.read_text())
    for pin in listed:
        if "+" in pin:
            pip = [sys.executable, "-m", "pip", "--quiet", "install", "--dry-run", "--ignore-installed", "--no-deps"]
            report = json.loads(run([*pip, "--only-binary", ":all:", "--report", "-", pin]))
            offered[pin] = {one["download_info"]["archive_info"]["hashes"]["sha256"] for one in report["install"]}
    return [f"{pin}: the index does not offer {one}" for pin, hashes in listed.items() for one in sorted(hashes - offered.get(pin, set()))]


def not_installable(public: Path, platform: str, python: str) -> list[str]:
    """Fails if a package of the list has no wheel for this machine and interpreter."""
    argv = [*UV, "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run(
        [
            *argv,
            "--python-platform",
            platform,
            "--python-version",
            python,
            "--target",
            f"{public}-nothing",
            "-r",
            str(public),
        ]
    )
    return []


def main(names: list[str]) -> int:
    """Check the lock files of these names; return the exit code."""
    begin = time.monotonic()
    run([*UV, "--version"])  # puts uv in its place before several ask for it at once
    questions = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        for name in names:
            text = (ENVS / f"{name}.lock").read_text()
            public = Path(folder) / f"{name}.txt"
            public.with_suffix(".all").write_text(text)
            public.write_text("".join(found[0] for found in ENTRY.finditer(text) if "+" not in found["pin"]))
            questions.append((name, pool.submit(not_offered, public)))
            for platform, python in targets(name):
                questions.append((f"{name}, Python {python} on {platform}", pool.submit(not_installable, public, platform, python)))
        problems = [f"{what}: {text}" for what, question in questions for text in answers(question)]
    for problem in problems:
        print(problem)
    checked = ", ".join(f"{name} for {len(targets(name))}" for name in names)
    print(f"lists, and for how many machines and interpreters: {checked}; {len(problems)} problems, {time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


def answers(question: Future[list[str]]) -> list[str]:
    """Return the problems found; a tool's failure is one."""
    try:
        return question.result()
    except RuntimeError as error:
        return [str(error)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(LISTS)))
