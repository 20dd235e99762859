"""An image from a registry on this machine, with the stand-in of vLLM: charliecloud fetches it by its digest.

Without docker-registry or charliecloud these tests skip; with SERVEMARK_REQUIRE_CONTAINERS=1 they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import container_image, image_registry
from builders.image_folder import make_image
from builders.image_registry import Registry
from integration.harness import Checkout


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    container_image.require(image_registry.why_unavailable())
    with image_registry.running(tmp_path_factory.mktemp("registry") / "files") as registry:
        yield registry


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "standin")


def environment(checkout: Checkout, registry: Registry, image: str) -> dict[str, Any]:
    """Build the environment and return its record."""
    # With this variable set, Python's requests also ignores --tls-no-verify.
    checkout.exported["REQUESTS_CA_BUNDLE"] = str(registry.certificate)
    checkout.config["environments"] = {"standin": {"container": {"image": image, "runtime": "charliecloud"}}}
    done = checkout.run("--until", "build_environment")
    assert done.rc == 0, done.text
    return checkout.record("environments/standin/environment.json")


def test_moved_tag_gives_another_environment(checkouts: Callable[[], Checkout], registry: Registry, image: Path):
    """The tag is resolved to its digest when the environment is built."""
    tag = f"docker://{registry.address}/group/vllm:latest"
    pushed = registry.push(image, "group/vllm", "latest")
    before = checkouts()
    before.keep("a")
    before.config["workloads"]["chat"]["concurrency"] = 1
    first = environment(before, registry, tag)
    assert (first["container"]["digest"], f"sha256:{first['digest']}") == (pushed, pushed)
    assert before.run().rc == 0, "the image serves and is measured"
    assert [row["verdict"] in ("VALID", "SUSPECT") for row in before.rows().values()] == [True]

    (image / "etc/release").write_text("2\n")
    moved = registry.push(image, "group/vllm", "latest")
    second = environment(checkouts(), registry, tag)
    assert moved != pushed and second["container"]["digest"] == moved
    assert second["digest"] != first["digest"] and second["container"]["place"] != first["container"]["place"]

    by_digest = environment(checkouts(), registry, f"docker://{registry.address}/group/vllm@{pushed}")
    assert by_digest["digest"] == first["digest"] and by_digest["container"]["place"] == first["container"]["place"]
    assert os.path.isdir(first["container"]["place"])
