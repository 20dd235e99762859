"""The Python of how-to-use.txt, exactly as printed, with versions of the openai package from the index."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from integration.harness import RUN, Checkout
from integration.test_serve import STOPPED_S, serve, servemark
from servemark.deployment import how_to_use

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
# openai before 1.56 passes an argument that httpx 0.28 does not accept.
VERSIONS = {"newest": ["openai"], "oldest": ["openai==1.0.0", "httpx<0.28"]}


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an interpreter for each version, each in its own environment."""
    found = {}
    for name, packages in VERSIONS.items():
        folder = tmp_path_factory.mktemp("openai") / name
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        found[name] = str(folder / "bin" / "python")
        pip = [found[name], "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
        if done.returncode:
            reason = f"no package index: {done.stderr.strip()[-300:]}"
            (pytest.fail if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1" else pytest.skip)(reason)
    return found


def test_printed_python_runs_with_old_and_new_openai(checkout: Checkout, pythons: dict[str, str], tmp_path):
    checkout.keep("a")
    running = serve(checkout)
    page = (checkout.results / "serving" / "a" / how_to_use.NAME).read_text()
    program = tmp_path / "ask.py"
    program.write_text(page.partition(f"{how_to_use.PYTHON_BEGIN}\n")[2].partition(how_to_use.PYTHON_END)[0])
    # As on a cluster whose proxy does not reach its compute nodes.
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    for name, python in pythons.items():
        asked = subprocess.run([python, str(program)], capture_output=True, text=True, timeout=120, env=os.environ | proxies)
        assert asked.returncode == 0 and asked.stdout.strip(), f"{name}: {asked.stderr}"
    assert servemark(checkout, "stop", "a", "--run", RUN).returncode == 0
    assert running.wait(STOPPED_S).rc == 0
