"""Digests of container images: what they cover."""

import os

import pytest

from servemark.environments import build, images
from servemark.errors import EnvironmentRefused
from servemark.records import Container, Environment


def container(place, image=None) -> Container:
    return Container(image=image or str(place), runtime="apptainer", place=str(place), digest="")


@pytest.fixture
def folder(tmp_path):
    image = tmp_path / "image"
    for name in ("usr/lib/python3/vllm", "tmp", "proc", "dev", "usr/lib/python3/__pycache__"):
        (image / name).mkdir(parents=True)
    (image / "usr/lib/python3/vllm/a.py").write_text("1")
    (image / "usr/lib/libc.so").write_text("elf")
    (image / "etc").symlink_to("/etc")
    return image


def digest(place, told, cache=None, image=None):
    return images.digest_now(container(place, image), cache, told)


def test_digest_covers_files_links_and_names(folder, told):
    first = digest(folder, told)
    assert first.startswith("sha256:") and len(first) == 71
    seen = {first}
    (folder / "usr/lib/python3/vllm/a.py").write_text("2")
    seen.add(digest(folder, told))
    (folder / "usr/lib/libc.so").rename(folder / "usr/lib/libd.so")
    seen.add(digest(folder, told))
    (folder / "etc").unlink()
    (folder / "etc").symlink_to("/usr/etc")
    seen.add(digest(folder, told))
    assert len(seen) == 4


def test_digest_leaves_out_what_a_run_adds(folder, told):
    first = digest(folder, told)
    (folder / "data/models").mkdir(parents=True)
    for name in ("tmp/x", "proc/x", "dev/x", "usr/lib/python3/__pycache__/a.pyc"):
        (folder / name).write_text("x")
    assert digest(folder, told) == first


def test_digest_of_a_copy_is_the_same(folder, told, tmp_path):
    os.rename(folder, tmp_path / "moved")
    moved = digest(tmp_path / "moved", told)
    os.rename(tmp_path / "moved", folder)
    assert digest(folder, told) == moved


def test_digest_of_an_image_file_is_its_sha256(tmp_path, told):
    (tmp_path / "x.sif").write_bytes(b"abc")
    assert digest(tmp_path / "x.sif", told) == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_fetched_image_has_the_registrys_digest(tmp_path, told):
    (tmp_path / "x.sif").write_bytes(b"abc")
    image = container(tmp_path / "x.sif", "docker://a/b:c").model_copy(update={"digest": "sha256:" + "1" * 64})
    assert images.digest_now(image, None, told) == image.digest


def test_only_a_fetched_image_is_fetched_again(tmp_path):
    place = tmp_path / "x.sif"
    assert images.is_gone(container(place, "docker://a/b:c")) and not images.is_gone(container(place))
    assert not images.is_gone(container("registry.example/a/b@sha256:1", "docker://a/b:c"))
    place.touch()
    assert not images.is_gone(container(place, "docker://a/b:c"))


def test_missing_image_is_refused(tmp_path, told):
    with pytest.raises(EnvironmentRefused) as refused:
        digest(tmp_path / "x.sif", told)
    assert refused.value.reason == "image_missing"


def test_changed_image_is_noticed_before_a_deployment_starts(folder, told, tmp_path):
    found = digest(folder, told, tmp_path / "cache")
    image = container(folder).model_copy(update={"digest": found})
    environment = Environment(
        name="c", origin="container", digest=found.removeprefix("sha256:"), prefix=str(folder), python="/usr/bin/python3", container=image,
        packages=0, seconds=0, size_mib=0,
    )  # fmt: skip
    build.verify(environment, tmp_path / "cache", told)
    (folder / "usr/lib/libc.so").write_text("other")
    with pytest.raises(EnvironmentRefused) as refused:
        build.verify(environment, tmp_path / "cache", told)
    assert refused.value.reason == "environment_changed"


def test_image_of_a_runtime_that_a_module_brings_exists(told, tmp_path, monkeypatch):
    podman = tmp_path / "bin" / "podman"
    podman.parent.mkdir()
    podman.write_text('#!/bin/sh\n[ "$1 $2" = "image exists" ]\n')
    podman.chmod(0o755)
    # A login shell reads it, as on a site with modules.
    (tmp_path / ".bash_profile").write_text(f'module() {{ [ "$*" = "load tools" ] && PATH={podman.parent}:/usr/bin:/bin; }}\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    image = Container(image="docker://a/b:c", runtime="podman", place="docker.io/a/b@sha256:1", digest="sha256:" + "1" * 64)
    environment = Environment(
        name="c", origin="container", digest="1" * 64, prefix=image.place, python="/usr/bin/python3", container=image,
        packages=0, seconds=0, size_mib=0,
    )  # fmt: skip
    build.verify(environment, tmp_path, told, ["tools"])
    with pytest.raises(EnvironmentRefused) as refused:
        build.verify(environment, tmp_path, told, ["others"])
    assert refused.value.reason == "image_missing"
