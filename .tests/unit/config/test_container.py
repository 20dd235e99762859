"""``environments.NAME.container``: what the configuration accepts, and what ``servemark check`` finds."""

import pytest

from servemark.cli import main as cli
from servemark.config.container import Container
from servemark.containers import runtimes

SIF = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"
DIGEST = "sha256:" + "a" * 64
CONFIG = """\
run: r
models: {m: {source: "builtin:tiny-dense"}}
environments:
  e:
    container:
      image: %s
      %s
deployments:
  d: {model: m, environment: e}
workloads:
  w: {dataset: random, input_tokens: 8, output_tokens: 4, requests: 4, concurrency: 1}
"""


@pytest.mark.parametrize(
    "image",
    [
        "docker://vllm/vllm-openai:v0.32.0",
        f"docker://vllm/vllm-openai@{DIGEST}",
        "docker://127.0.0.1:5000/a/b_c:d",
        "/images/x.sif",
        "/x.sqsh",
        "/x",
    ],
)
def test_accepted_images(image):
    assert Container.model_validate({"image": image}).image == image


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"image": "x.sif"}, "image"),
        ({"image": "./folder"}, "image"),
        ({"image": "docker://Big/Name"}, "image"),
        ({"image": "docker://a@sha256:12"}, "image"),
        ({"image": "oci://a/b"}, "image"),
        ({"image": "/images/$X.sif"}, "image"),
        ({"image": "/x", "runtime": "pyxis"}, "runtime"),
        ({"image": "/x.sqsh", "runtime": "pyxis"}, "runtime: enroot"),
        ({"image": "/x.sqsh", "runtime": "apptainer"}, "runtime"),
        ({"image": "/x", "runtime": "podman"}, "runtime"),
        ({"image": "/x.sif", "runtime": "charliecloud"}, "runtime"),
        ({"image": "/x", "binds": ["data"]}, "binds"),
        ({"image": "/x", "binds": ["/data:/usr"]}, "binds"),
        ({"image": "/x", "binds": ["/data:/"]}, "binds"),
        ({"image": "/x", "binds": ["/dev"]}, "binds"),
        ({"image": "/x", "binds": ["/data:/data:ro"]}, "binds"),
        ({"image": "/x", "binds": [1]}, "binds"),
        ({"image": "/x", "options": ["nv"]}, "options"),
        ({"image": "/x", "options": ["--env=MY_API_KEY=abc"]}, "options"),
        ({"image": "/x", "python": "python3"}, "python"),
    ],
)
def test_refused(given, at):
    with pytest.raises(ValueError, match=at):
        Container.model_validate(given)


def test_binds_have_two_sides_and_one_value_is_a_list():
    found = Container.model_validate({"image": "/x", "binds": "/data/", "options": "--a=b"})
    assert found.binds == ("/data:/data",) and found.options == ("--a=b",)


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtimes.shutil, "which", lambda program, *_, **__: f"/bin/{program}" if program == "ch-run" else None)

    def run(image, more=""):
        (tmp_path / "my.yaml").write_text(CONFIG % (image, more))
        code = cli.main(["check", "my.yaml"])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_check_finds_missing_images_binds_and_runtimes(check, tmp_path):
    (tmp_path / "image/usr").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.sif").write_bytes(SIF)
    (tmp_path / "page.sif").write_text("<html>404</html>" * 9)
    (tmp_path / "empty.sqsh").touch()
    key = "environments.e.container"
    assert check(tmp_path / "image")[0] == 0
    for image, more, place in [
        (tmp_path / "none", "", f"my.yaml:6: {key}.image"),
        (tmp_path / "empty", "", f"my.yaml:6: {key}.image"),
        (tmp_path / "none.sif", "runtime: apptainer", f"my.yaml:6: {key}.image"),
        (tmp_path / "x.sif", "", f"my.yaml:6: {key}.image"),  # no apptainer in the PATH
        (tmp_path / "x.sif", "runtime: apptainer", f"my.yaml:7: {key}.runtime"),
        (tmp_path / "page.sif", "runtime: apptainer", f"my.yaml:6: {key}.image"),
        (tmp_path / "empty.sqsh", "runtime: enroot", f"my.yaml:6: {key}.image"),
        (tmp_path / "none.sqsh", "runtime: enroot", f"my.yaml:6: {key}.image"),
        (tmp_path / "x.sif", "runtime: pyxis", f"my.yaml:7: {key}.runtime"),
        (tmp_path / "image", f"binds: [{tmp_path}/none]", f"my.yaml:7: {key}.binds"),
        (tmp_path / "image", "lock: cpu", f"my.yaml:7: {key}"),
    ]:
        code, text = check(image, more)
        assert code == 2 and place in text, (image, more, text)


def test_check_says_that_a_registry_is_asked_in_the_run(check):
    code, text = check("docker://vllm/vllm-openai:v0.32.0")
    assert code == 0 and "docker://vllm/vllm-openai:v0.32.0" in text


def test_lock_and_container_exclude_each_other(check):
    code, text = check("/x\n    lock: cpu")
    assert code == 2 and "environments.e" in text and "`container`" in text
