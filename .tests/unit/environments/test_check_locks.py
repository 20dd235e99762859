"""CI's check of the lock files: a missing hash, a failing tool, a package that only pip finds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from builders.paths import ROOT

ONE, TWO, CPU = "1" * 64, "2" * 64, "3" * 64
LOCK = f"""\
demo==1.0 ; sys_platform == 'linux' \\
    --hash=sha256:{ONE} \\
    --hash=sha256:{TWO}
torch==2.0+cpu \\
    --hash=sha256:{CPU}
"""


class Tools:
    """Stands for uv and pip: what the index offers."""

    def __init__(self) -> None:
        self.offered, self.by_pip, self.fails = LOCK.split("torch")[0], CPU, ""
        self.asked: list[list[str]] = []

    def run(self, argv: list[str]) -> str:
        self.asked.append(argv)
        if self.fails and self.fails in argv:
            raise RuntimeError(f"{self.fails} failed")
        if "compile" in argv:
            Path(argv[-1]).write_text(self.offered)
        if "--report" in argv:
            info = {"download_info": {"archive_info": {"hashes": {"sha256": self.by_pip}}}}
            return json.dumps({"install": [info]})
        return ""


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def check(tools, tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("check_locks", ROOT / ".ci" / "check_locks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "cpu.lock").write_text(LOCK)
    monkeypatch.setattr(module, "ENVS", tmp_path)
    monkeypatch.setattr(module, "run", tools.run)

    def run() -> tuple[int, str]:
        return module.main(["cpu"]), capsys.readouterr().out

    return run


def test_lock_file_with_available_hashes_passes(check, tools):
    code, told = check()
    assert code == 0 and "cpu for 1; 0 problems" in told
    (dry,) = [argv for argv in tools.asked if "--python-platform" in argv]
    assert dry[dry.index("--python-platform") + 1] == "x86_64-manylinux_2_31" and "3.11" in dry


@pytest.mark.parametrize(
    ("offered", "by_pip", "said"),
    [
        (LOCK.split("torch")[0].replace(TWO, ONE), CPU, f"cpu: demo==1.0: the index does not offer {TWO}"),
        ("", CPU, f"cpu: demo==1.0: the index does not offer {ONE}"),
        (LOCK.split("torch")[0], ONE, f"cpu: torch==2.0+cpu: the index does not offer {CPU}"),
    ],
    ids=["one file replaced", "version gone", "another CPU build"],
)
def test_hash_that_the_index_does_not_offer_fails(check, tools, offered, by_pip, said):
    tools.offered, tools.by_pip = offered, by_pip
    code, told = check()
    assert code == 1 and said in told


@pytest.mark.parametrize(
    ("fails", "what"),
    [("--python-platform", "cpu, Python 3.11 on x86_64-manylinux_2_31"), ("compile", "cpu"), ("--report", "cpu")],
)
def test_failing_tool_is_a_problem_with_its_error(check, tools, fails, what):
    tools.fails = fails
    code, told = check()
    assert code == 1 and f"{what}: {fails} failed" in told
