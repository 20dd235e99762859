"""A run with a home folder that is not writable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from integration.harness import Checkout

NOBODY = 65534


def without_privileges() -> list[str]:
    """Return a command that drops root's right to write everywhere, so that file owner and mode count."""
    if os.geteuid() != 0:
        return []
    found = shutil.which("setpriv")
    if not found:
        pytest.skip("needs setpriv (util-linux)")
    return [found, "--bounding-set=-all", "--inh-caps=-all"]


@pytest.mark.parametrize(
    "kind",
    ["closed", pytest.param("missing", marks=pytest.mark.full), pytest.param("anothers", marks=pytest.mark.full)],
)
def test_run_with_unwritable_home(checkout: Checkout, tmp_path: Path, kind: str):
    home = tmp_path / "home"
    home.mkdir()
    if kind == "anothers":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(home, NOBODY, NOBODY)
        home.chmod(0o700)
    else:
        home.chmod(0o555)
    checkout.keep("a")
    checkout.through = without_privileges()
    checkout.exported = {
        "HOME": str(home / "nobody" if kind == "missing" else home),
        "XDG_CACHE_HOME": "",
        "XDG_CONFIG_HOME": "",
    }

    done = checkout.run()

    assert done.rc == 0, done.text
    assert "Traceback" not in done.text and "Permission denied" not in done.text, done.text
    assert list(home.iterdir()) == []
    # Caches of libraries are in the user's own folder on this machine.
    assert {path.name for path in checkout.runtime.iterdir()} == {"machine.lock", "home"}
    assert checkout.runtime.stat().st_mode & 0o077 == 0
    home.chmod(0o700)
