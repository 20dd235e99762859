"""Environments: built once from a lock file with hashes and shared, or an existing prefix."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from builders import odd_folder
from builders.paths import LIBRARY
from builders.places import site_packages
from servemark.environments import build as environment
from servemark.environments import interpreter
from servemark.environments.lockfiles import Lock
from servemark.errors import EnvironmentRefused, ServemarkError
from servemark.files import storage
from servemark.files.storage import CacheClosed
from servemark.processes.identity import OWNER_PROCESS_VARIABLE, myself

HERE = (sys.version_info[:2], platform.machine())
# A build backend without dependencies, so that the shim builds without an index.
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "shim-2.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("shim.py", "")
        wheel.writestr("shim-2.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: shim\\nVersion: 2.0\\n")
        wheel.writestr("shim-2.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("shim-2.0.dist-info/RECORD", "")
    return name
"""


def make_wheel(folder: Path, name: str, version: str) -> tuple[Path, str]:
    """Write a wheel with one module; return its path and sha256."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{name}_data.txt": "x" * 200_000,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(zipfile.ZipInfo(file), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(text)}")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def lock(tmp_path, monkeypatch) -> Lock:
    """A lock file of one package, which pip finds only in a local folder."""
    _, digest = make_wheel(tmp_path / "wheels", "demo", "1.0")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "wheels"), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    requirements = tmp_path / "envs" / "demo.lock"
    requirements.parent.mkdir()
    requirements.write_text(f"demo==1.0 \\\n    --hash=sha256:{digest}\n")
    return Lock("demo", requirements, (HERE[0],), (HERE[1],))


def said(told) -> int:
    """Return the number of different texts of the progress, without the hashing of installed files."""
    return len({text for text in told.words if "hashing" not in text})


@pytest.fixture
def build(lock, tmp_path, told, watch):
    def run(given: Lock = lock, name: str = "cpu", timeout_s: float = 300, bundle: Path | None = None):
        log = tmp_path / "build.log"
        log.unlink(missing_ok=True)
        cache = tmp_path / "cache"
        return environment.build(name, given, cache, log=log, timeout_s=timeout_s, progress=told, watch=watch, bundle=bundle)

    return run


def test_lock_is_built_once_into_prefix_named_by_its_digest(build, lock, tmp_path, told):
    record = build()
    assert record.prefix == str(tmp_path / "cache" / "environments" / f"demo-{lock.digest(*HERE)[:12]}")
    assert (record.origin, record.lock, record.packages, record.installed) == ("lock", "demo", 1, record.digest)
    assert record.files == 4, "a module, data, METADATA and WHEEL"
    assert record.seconds > 0 and record.size_mib == 0.2
    printed = subprocess.run([record.python, "-c", "import demo; print(demo.VERSION)"], capture_output=True, text=True)
    assert printed.stdout == "1.0\n"
    assert said(told) == 2, "venv and pip"
    again = build(name="other")
    assert again == record.model_copy(update={"name": "other", "seconds": 0.0})
    assert said(told) == 3, "found, not built"


def test_digest_covers_files_interpreter_and_machine(lock, tmp_path):
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "pyproject.toml").write_text("a")
    with_shim = dataclasses.replace(lock, shim=shim)
    digests = [
        lock.digest(*HERE),
        with_shim.digest(*HERE),
        lock.digest((3, 99), HERE[1]),
        lock.digest(HERE[0], "other"),
    ]
    (shim / "pyproject.toml").write_text("b")
    digests.append(with_shim.digest(*HERE))
    lock.requirements.write_text("demo==1.1\n")
    digests.append(lock.digest(*HERE))
    assert len(set(digests)) == len(digests)
    moved = tmp_path / "moved" / "demo.lock"
    moved.parent.mkdir()
    moved.write_text("demo==1.1\n")
    assert dataclasses.replace(lock, requirements=moved).digest(*HERE) == lock.digest(*HERE), "its place does not matter"


def test_half_built_prefix_is_built_again(build, lock, tmp_path, told):
    half = tmp_path / "cache" / "environments" / f"demo-{lock.digest(*HERE)[:12]}"
    (half / "lib").mkdir(parents=True)
    (half / "lib" / "rubbish").write_text("from a build that was killed")
    record = build()
    assert said(told) == 3, "it reports the removal"
    assert not (half / "lib" / "rubbish").exists() and record.packages == 1


def test_shim_is_built_from_a_copy_and_installed(build, lock, tmp_path, told):
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "backend.py").write_text(BACKEND)
    (shim / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    before = sorted(shim.iterdir())
    record = build(dataclasses.replace(lock, shim=shim))
    assert said(told) == 3
    assert not (Path(record.prefix) / "tmp").exists(), "what pip downloaded is gone"
    assert interpreter.ask(Path(record.python)).packages == ("demo==1.0", "shim==2.0")
    assert sorted(shim.iterdir()) == before, "the checkout stays clean"


def test_shim_is_installed_in_a_cache_with_an_odd_name(lock, tmp_path, told, watch):
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "backend.py").write_text(BACKEND)
    (shim / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    given, cache = dataclasses.replace(lock, shim=shim), tmp_path / odd_folder.NAME
    record = environment.build("cpu", given, cache, log=tmp_path / "log", timeout_s=300, progress=told, watch=watch)
    assert record.packages == 2


def test_two_builds_at_once_build_one_prefix(lock, tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from servemark.environments import build as environment, lockfiles as locks\n"
        "from servemark.processes import children\n"
        "from servemark.progress import Progress\n"
        "lock = locks.Lock('demo', Path(sys.argv[1]), (sys.version_info[:2],), (sys.argv[3],))\n"
        "cache = Path(sys.argv[2])\n"
        "record = environment.build('cpu', lock, cache, log=cache.parent / sys.argv[4], timeout_s=300,\n"
        "  progress=Progress(cache.parent / (sys.argv[4] + '.jsonl'), 'b'), watch=children.OwnerWatch())\n"
        "print(record.seconds, record.prefix)"
    )
    env = {**os.environ, "PYTHONPATH": LIBRARY, OWNER_PROCESS_VARIABLE: str(myself())}
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(lock.requirements), str(tmp_path / "cache"), HERE[1], f"log{n}"],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    outputs = [one.communicate(timeout=300)[0].split() for one in builds]
    assert [one.returncode for one in builds] == [0, 0]
    assert sorted(float(seconds) > 0 for seconds, _ in outputs) == [False, True], "the second one found it built"
    assert outputs[0][1] == outputs[1][1]
    assert sorted((tmp_path / f"log{n}").exists() for n in range(2)) == [False, True], "pip ran once"


def test_existing_environment_needs_no_lock(build, monkeypatch):
    """In another user's cache the lock file may be read-only."""
    built = build()
    monkeypatch.setattr(FileLock, "acquire", lambda *_, **__: pytest.fail("acquired a lock"))
    assert build().python == built.python


def test_read_only_cache_is_refused(build, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with pytest.raises(CacheClosed) as caught:
        build()
    assert caught.value.reason == "cache_not_writable" and "`cache`" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "packages", "said"),
    [
        ('echo \'words of a .pth file\'; echo \'{"python": "3.12.1", "packages": ["vllm==1"], "path": []}\'', ("vllm==1",), None),
        ("echo nonsense", None, "nonsense"),
        ("true", None, ""),
        ("sleep 5", None, " 1 s"),
    ],
)
def test_packages_are_the_json_of_the_last_line(tmp_path, monkeypatch, script, packages, said):
    if script == "sleep 5":
        monkeypatch.setattr(interpreter, "RESPONSE_S", 1)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    if packages:
        assert interpreter.ask(python).packages == packages
        return
    with pytest.raises(EnvironmentRefused) as caught:
        interpreter.ask(python)
    assert caught.value.reason == "prefix_broken" and said in caught.value.what


def test_build_waits_for_another_one_and_reports_it(build, lock, tmp_path, told, wait_for):
    prefix = tmp_path / "cache" / "environments" / f"demo-{lock.digest(*HERE)[:12]}"
    prefix.parent.mkdir(parents=True)
    with FileLock(f"{prefix}.lock"):
        thread = threading.Thread(target=build)
        thread.start()
        wait_for(lambda: any("another run" in text for text in told.words))
        assert not prefix.exists()
    thread.join(300)
    assert environment.Environment.read(prefix / environment.MARKER).packages == 1


@pytest.mark.parametrize(
    ("locked", "cause", "advice"),
    [
        (f"demo==1.0 --hash=sha256:{'0' * 64}", "HASH", "package index"),
        (
            f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}",
            "torch==2.13.0+cpu",
            "docs/reference/environments.md",
        ),
        (f"nowhere==1.0 --hash=sha256:{'0' * 64}", "nowhere==1.0", "the log"),
    ],
    ids=["another file", "no CPU index", "no such package"],
)
def test_error_of_pip_is_quoted_with_a_remedy(build, lock, tmp_path, locked, cause, advice):
    lock.requirements.write_text(f"{locked}\n")
    with pytest.raises(EnvironmentRefused) as refused:
        build()
    assert refused.value.reason == "build_failed"
    assert cause in refused.value.what
    assert advice in refused.value.do
    assert refused.value.look == str(tmp_path / "build.log")
    assert not list((tmp_path / "cache" / "environments").glob(f"*/{environment.MARKER}")), "it does not look built"


def test_package_with_another_hash_is_not_installed(build, lock, tmp_path):
    make_wheel(tmp_path / "wheels", "demo", "1.0")
    with zipfile.ZipFile(tmp_path / "wheels" / "demo-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("evil.py", "print('hello')")
    with pytest.raises(EnvironmentRefused) as refused:
        build()
    assert refused.value.reason == "build_failed" and "HASHES" in refused.value.what
    assert not list((tmp_path / "cache").rglob("evil.py"))


def test_bundle_is_installed_without_an_index(build, tmp_path, monkeypatch):
    (tmp_path / "wheels").rename(tmp_path / "my wheels")
    for name in ("NO_INDEX", "FIND_LINKS"):
        monkeypatch.delenv(f"PIP_{name}")
    # An index that nothing listens on: a request would fail.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    record = build(bundle=tmp_path / "my wheels")
    assert environment.ask(Path(record.python)).packages == ("demo==1.0",)
    shutil.rmtree(tmp_path / "my wheels")
    assert build(bundle=tmp_path / "my wheels").prefix == record.prefix, "a built environment needs no wheels"


@pytest.mark.parametrize("fault", ["missing", "changed", "no folder"])
def test_faulty_bundle_is_refused_before_pip(build, tmp_path, fault):
    wheel = tmp_path / "wheels" / "demo-1.0-py3-none-any.whl"
    if fault == "changed":
        with zipfile.ZipFile(wheel, "a") as changed:
            changed.writestr("evil.py", "")
    elif fault == "missing":
        wheel.unlink()
    else:
        shutil.rmtree(wheel.parent)
    with pytest.raises(EnvironmentRefused) as refused:
        build(bundle=tmp_path / "wheels")
    assert refused.value.reason == "wheels_missing" and "demo==1.0" in refused.value.what
    assert not (tmp_path / "build.log").exists() and not (tmp_path / "cache").exists()


def test_build_is_ended_at_its_timeout(build, tmp_path, monkeypatch):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 300\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    with pytest.raises(EnvironmentRefused) as refused:
        build(timeout_s=0.01)
    assert refused.value.reason == "build_failed" and "timeout" in refused.value.what


def test_full_disk_is_refused_before_the_build(build, lock, tmp_path):
    with pytest.raises(EnvironmentRefused) as refused:
        build(dataclasses.replace(lock, installed_gib=1e6))
    assert refused.value.reason == "no_room" and "`cache`" in refused.value.do and "1000000 GiB" in refused.value.what
    assert str(storage.mount_point(tmp_path)) in refused.value.what
    assert not list((tmp_path / "cache" / "environments").glob("demo-*/*"))


@pytest.mark.parametrize("change", ["package", "module"])
def test_change_of_a_built_environment_gives_another_digest(build, tmp_path, told, change):
    cache = tmp_path / "cache"
    record = build()
    environment.verify(record, cache, told)
    folder = site_packages(record)
    module = (folder / "demo.py").read_text()
    if change == "package":
        (folder / "kernels-1.0.dist-info").mkdir()
        (folder / "kernels-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n")
    else:
        (folder / "demo.py").write_text(module.replace("1.0", "1.1"))
    with pytest.raises(EnvironmentRefused) as refused:
        environment.verify(record, cache, told)
    assert refused.value.reason == "environment_changed" and "environments/cpu/environment.json" in refused.value.do
    again = build()
    assert again.digest != again.installed == record.digest and again.prefix == record.prefix
    assert "ledger key" in told.words[-1]
    environment.verify(again, cache, told)
    assert build() == again
    shutil.rmtree(folder / "kernels-1.0.dist-info", ignore_errors=True)
    (folder / "demo.py").write_text(module)
    assert build() == record.model_copy(update={"seconds": 0.0})


def test_environment_built_before_files_were_hashed_gets_a_digest(build):
    record = build()
    old = {"files": None, "digest": "0" * 64, "installed": "1" * 64}
    record.model_copy(update=old).write(Path(record.prefix) / environment.MARKER)
    assert build() == record.model_copy(update={"seconds": 0.0, "installed": None})


def test_prefix_without_interpreter_is_refused_by_its_key(tmp_path, told):
    with pytest.raises(EnvironmentRefused) as refused:
        environment.use_prefix("mine", tmp_path, None, told)
    assert refused.value.reason == "prefix_missing" and "environments.mine.prefix" in refused.value.what


def test_interpreter_that_fails_is_refused_with_its_error(tmp_path, told):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'wrong ELF class' >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentRefused) as refused:
        environment.use_prefix("mine", tmp_path, None, told)
    assert refused.value.reason == "prefix_broken" and "wrong ELF class" in refused.value.what


@pytest.mark.parametrize(("text", "mode"), [("#!/bin/sh\n", 0o644), ("#!/no/such/shell\n", 0o755), ("\0\0\0\0", 0o755)])
def test_interpreter_that_cannot_be_started_is_refused(tmp_path, text, mode):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(text)
    python.chmod(mode)
    with pytest.raises(EnvironmentRefused) as refused:
        interpreter.ask(python)
    assert refused.value.reason == "prefix_broken" and str(python) in refused.value.what


def test_damaged_marker_is_refused(build, lock):
    record = build()
    (Path(record.prefix) / environment.MARKER).write_text("{")
    with pytest.raises(ServemarkError, match=environment.MARKER):
        build()
