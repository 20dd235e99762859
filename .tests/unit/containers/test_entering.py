"""Programs in a real container of Charliecloud: what they see of the host."""

import json
import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from builders.image_folder import make_image
from servemark.containers import entering
from servemark.environments.build import IN_MODEL_ENV
from servemark.records import Container

pytestmark = pytest.mark.skipif(shutil.which("ch-run") is None, reason="needs Charliecloud (apt-get install charliecloud)")
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_image(tmp_path_factory.mktemp("image") / "folder")


@pytest.fixture
def image(folder):
    return Container(image=str(folder), runtime="charliecloud", place=str(folder), digest="sha256:" + "0" * 64)


def inside(image, code, env, **how):
    argv, environment = entering.enter(image, [PYTHON, "-c", code], env, **how)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), argv


def test_variables_of_the_process_enter_and_those_of_the_host_do_not(image, tmp_path):
    host = {"LD_LIBRARY_PATH": "/host/lib", "PYTHONPATH": "/host/lib", "PYTHONHOME": "/host", "CUDA_HOME": "/host/cuda", "FOO": "1"}
    env = {**os.environ, **host, "NCCL_DEBUG": "INFO", "SERVEMARK_API_KEY": "sk-1", "VLLM_X": "2", "TMPDIR": str(tmp_path)}
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    found, argv = inside(image, code, env, given=["SERVEMARK_API_KEY", "VLLM_X"])
    assert (found["NCCL_DEBUG"], found["SERVEMARK_API_KEY"], found["VLLM_X"]) == ("INFO", "sk-1", "2")
    assert not set(host) & set(found) and "sk-1" not in " ".join(argv)
    assert found["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert found["HOME"] == found["TMPDIR"] == str(tmp_path)


def test_variable_of_a_path_enters_if_the_process_has_it(image, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    found, _ = inside(image, "import json, sys; print(json.dumps(sys.path))", env, given=["PYTHONPATH"])
    assert str(tmp_path) in found


def test_folders_have_the_same_path_and_the_home_folder_is_not_there(image, tmp_path, monkeypatch):
    home, data = tmp_path / "home", tmp_path / "data"
    for one in (home, data):
        one.mkdir()
        (one / "file").touch()
    monkeypatch.chdir(data)
    # The checkout of the tests may be below the real home folder, so look for another file of it.
    home_file = os.path.expanduser("~/servemark-test-of-containers")
    code = f"import json, os; print(json.dumps([os.path.exists(p) for p in ({str(data / 'file')!r}, {home_file!r})] + [os.getcwd()]))"
    open(home_file, "w").close()
    try:
        found, _ = inside(image, code, {**os.environ, "TMPDIR": str(tmp_path)}, folders=[data])
    finally:
        os.unlink(home_file)
    assert found == [True, False, str(data)]


def test_bind_at_another_path(image, tmp_path):
    (tmp_path / "file").touch()
    bound = image.model_copy(update={"binds": (f"{tmp_path}:/opt/data",)})
    found, _ = inside(bound, "import json, os; print(json.dumps(os.listdir('/opt/data')))", {**os.environ, "TMPDIR": "/tmp"})
    assert found == ["file"]


def test_bound_folders_that_do_not_exist_here_are_left_out(image, tmp_path):
    bound = entering.bound(image, [tmp_path / "none"])
    assert str(tmp_path / "none") in bound.binds
    assert inside(bound, "print(1)", {**os.environ, "TMPDIR": "/tmp"})[0] == 1


def test_sampler_in_a_container_counts_the_other_containers_of_its_deployment(image, tmp_path):
    """Variables of a process in another user namespace cannot be read; its parent's command line, or its parent's id, tells."""
    attempt, file = tmp_path / "attempt", tmp_path / "samples"
    burn = "import time\nend = time.time() + 300\nwhile time.time() < end: pass"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    argv, inner = entering.enter(image, [PYTHON, "-c", burn], env)
    # As a remote agent does.
    start = "import json, subprocess, sys; subprocess.run(json.loads(sys.argv[1]))"
    agent = subprocess.Popen([sys.executable, "-c", start, json.dumps(argv), str(attempt / "requests" / "x.json")], env=inner)
    words = [PYTHON, str(IN_MODEL_ENV / "gpu_watch.py"), str(file), "--cpu", "--folder", str(attempt), "--interval", "0.2"]
    argv, inner = entering.enter(image, words, env)
    sampler = subprocess.Popen(argv, env=inner)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []  # the last one may be incomplete
            own = json.loads(lines[-1]).get("own_s", 0) if lines else 0
            if own > 0.3:
                break
            time.sleep(0.1)
        assert own > 0.3
    finally:
        for process in (*psutil.Process(agent.pid).children(recursive=True), agent, sampler):
            process.kill()
        agent.wait()
        sampler.wait()
