"""The whole workflow in a folder whose name has a space, an umlaut, quotes and characters that shells expand."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import odd_folder
from integration import harness
from integration.harness import Checkout
from standin import make_prefix


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkout]:
    """Return a fresh checkout in an odd folder, with its own environment."""
    path = tmp_path / odd_folder.NAME / "checkout"
    path.mkdir(parents=True)
    harness.copy_parts(path)
    monkeypatch.setattr(harness, "SNAKEMAKE", odd_folder.own_environment(path))
    runtime = Path(tempfile.mkdtemp(prefix="smt-", dir="/tmp"))
    # A configuration may not contain `$`.
    prefix = make_prefix(tmp_path / odd_folder.NAME.replace("$", ""))
    checkout = Checkout(path, runtime, harness.basic_config(prefix, Path("results/cache")))
    checkout.keep("a")
    yield checkout
    for process in checkout.processes():
        process.kill()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.mark.parametrize("locale", ["C", pytest.param("C.UTF-8", marks=pytest.mark.full)])
def test_whole_run_in_odd_folder_exits_with_0(odd: Checkout, locale: str) -> None:
    done = odd.run(LC_ALL=locale, PYTHONPATH="", seconds=300)
    assert done.rc == 0, done.text
    verdicts = {name: record["verdict"] for name, record in odd.points("a").items()}
    assert set(verdicts) == {"chat-c1-r1", "chat-c2-r1"} and set(verdicts.values()) <= {"VALID", "SUSPECT"}
    said = subprocess.run(
        [odd.path / ".venv/bin/servemark", "show", odd.results / "archive" / f"{harness.RUN}.tar.zst"],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": locale}, cwd="/", capture_output=True, timeout=180,
    )  # fmt: skip
    assert (said.returncode, said.stdout.count(b"chat")) == (0, 2), said.stderr
    odd.assert_all_dead()


def test_run_in_folder_with_colon_is_refused_with_2(bare_checkout: Checkout, tmp_path: Path) -> None:
    path = tmp_path / "a:b"
    shutil.copytree(bare_checkout.path, path)
    checkout = Checkout(path, bare_checkout.runtime, bare_checkout.config)
    done = checkout.run(PYTHONPATH="")
    assert (done.rc, "Traceback" in done.text) == (2, False), done.text
    assert list(checkout.results.glob("*")) == []
