"""An environment in a container image: what is refused before anything starts, and what its record states."""

import shutil

import pytest

from builders.image_folder import make_image
from servemark.environments import bytecode_cache, check
from servemark.environments.container import Builder
from servemark.errors import EnvironmentRefused
from servemark.processes.children import OwnerWatch
from servemark.records import Container, Environment
from standin import VERSION

charliecloud = pytest.mark.skipif(shutil.which("ch-run") is None, reason="needs Charliecloud (apt-get install charliecloud)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_image(tmp_path_factory.mktemp("image") / "folder")


@pytest.fixture
def builder(tmp_path, told, watch: OwnerWatch):
    def make(image, **asked) -> Builder:
        section = {"image": str(image), "runtime": "auto", "binds": [], "options": [], "python": None} | asked
        return Builder("e", section, tmp_path / "cache", (), tmp_path / "log", 30.0, told, watch)

    return make


def test_missing_runtime_is_refused_with_its_key(builder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentRefused) as refused:
        builder(tmp_path / "x.sif").build()
    assert refused.value.reason == "runtime_missing"
    assert "environments.e.container" in refused.value.what and "apptainer" in refused.value.what


def test_image_without_vllm_is_refused_with_its_key(tmp_path):
    log = tmp_path / "check.log"
    log.write_text("ModuleNotFoundError: No module named 'vllm'\n")
    image = Container(image="/x.sif", runtime="apptainer", place="/x.sif", digest="sha256:" + "0" * 64)
    mine = Environment(
        name="mine", origin="container", digest="0" * 64, prefix="/x.sif", python="/usr/bin/python3", container=image, packages=2,
        seconds=0, size_mib=0,
    )  # fmt: skip
    refused = check._broken(mine, "importing", log)
    assert refused.reason == "vllm_missing" and "environments.mine.container.image" in refused.do


@charliecloud
def test_record_of_a_folder(builder, folder, told):
    made = builder(folder, binds=["/opt:/opt"], options=["--no-passwd"]).build()
    image = made.container
    assert (made.origin, made.python, made.prefix, made.packages) == ("container", "/usr/bin/python3", str(folder), 3)
    assert (image.runtime, image.binds, image.options, image.gpus) == ("charliecloud", ("/opt:/opt",), ("--no-passwd",), False)
    assert image.digest == f"sha256:{made.digest}" and f"vllm=={VERSION}" in image.packages and image.version.startswith("0.")
    assert any("charliecloud" in text for text in told.words)


@charliecloud
@pytest.mark.parametrize("python", ["/opt/none/bin/python", "/bin/sh"])
def test_interpreter_that_does_not_run_is_refused(builder, folder, python):
    with pytest.raises(EnvironmentRefused) as refused:
        builder(folder, python=python).build()
    assert refused.value.reason == "prefix_broken" and python in refused.value.what


@charliecloud
def test_image_without_python_is_refused(builder, folder, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, symlinks=True)
    (bare / "usr/bin/python3").unlink()
    with pytest.raises(EnvironmentRefused) as refused:
        builder(bare).build()
    assert refused.value.reason == "prefix_missing" and "environments.e.container.python" in refused.value.do


@charliecloud
def test_read_only_image_keeps_bytecode_in_the_cache(builder, folder, tmp_path, told):
    placed = bytecode_cache.placed(builder(folder).build(), tmp_path / "cache", told)
    assert placed.bytecode is None or placed.bytecode.startswith(str(tmp_path / "cache"))
