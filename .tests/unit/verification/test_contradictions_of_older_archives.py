"""The sealed archive of an older format: it verifies, and each fact that contradicts another one is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.paths import ROOT
from servemark import verification
from servemark.archive import seal as archive
from servemark.archive.crate import CRATE
from servemark.archive.seal import Digest
from servemark.verification.unpack import unpacked

SEALED = ROOT / ".tests/fixtures/archives/h200x4-tp4.tar.zst"
DEPLOYMENT = "deployments/tutorial-tp4"
RECORD, PLAN, ATTEMPT = f"{DEPLOYMENT}/points/tutorial-c512-r1.json", f"{DEPLOYMENT}/plan.json", f"{DEPLOYMENT}/attempts/001"
Change = Callable[[Any], object]


def resealed(destination: Path, changes: Mapping[str, Change]) -> Path:
    """Seal the archive again with changed records; manifest, sizes in the metadata and digests fit."""
    with unpacked(SEALED) as found:
        for name, change in changes.items():
            data = json.loads((found.folder / name).read_text())
            change(data)
            (found.folder / name).write_text(json.dumps(data))
        crate = json.loads((found.folder / CRATE).read_text())

        def describe(digests: Mapping[str, Digest]) -> dict[str, bytes]:
            for entity in crate["@graph"]:
                # The manifest's size depends on the names alone.
                if entity["@type"] == "File" and entity["@id"] != archive.MANIFEST:
                    entity["contentSize"] = str(digests[entity["@id"]].size)
            return {CRATE: json.dumps(crate).encode()}

        own = (CRATE, archive.README, archive.MANIFEST)
        files = {name: found.folder / name for name in found.digests if name not in own}
        archive.seal(files, destination, describe=describe)
    return destination


def deployment(change: Change) -> Change:
    return lambda record: change(record["key_parts"]["deployment"])


def test_archive_of_older_format_has_no_contradiction(tmp_path):
    result = verification.verify(resealed(tmp_path / "h200x4.tar.zst", {}))
    assert result.wrong == () and result.sealed_by.format == 1
    assert result.thresholds == ("min_requests_per_slot 2 (default 3)",)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {RECORD: deployment(lambda parts: [parts["hardware"].update(driver="1.0"), parts["options"].update({"max-num-seqs": "513"})])},
            (": key: ", "hardware: driver: ", "options: max-num-seqs: ", f"{ATTEMPT}/startup.json", f"{ATTEMPT}/daemons/server.json"),
        ),
        (
            {
                RECORD: lambda record: record.update(replica_requests={"r0": 1111}, seed=7),
                PLAN: lambda plan: [plan["options"].update(dtype="float16"), plan["points"][0].update(seed=7)],
                "hardware.json": lambda hardware: hardware.update(cpu_count=8),
                "models/gpt-oss-120b/manifest.json": lambda manifest: manifest.update(digest="0" * 64),
                "environments/h200/check.json": lambda check: check.update(vllm="0.99"),
            },
            (
                "replica_requests: ", "seed: client_argv", "key_parts: seed: ", "options: dtype: ", "config.json states 977498676",
                "hardware: cpu_count: ", "hardware.json states 8", "model gpt-oss-120b: digest: ", "model_digest: ",
                f"check.json states 0.99, {ATTEMPT}/server.log states 0.25.1",
            ),
        ),
        ({"config.json": lambda config: config["workloads"]["tutorial"].update(repetitions=2)}, ("tutorial-c512-r2: config.json asks",)),
    ],
    ids=["parts of the key", "what was measured", "load points"],
)  # fmt: skip
def test_contradiction_in_archive_of_older_format_is_named(tmp_path, changes, named):
    wrong = "\n".join(verification.verify(resealed(tmp_path / "h200x4.tar.zst", changes)).wrong)
    for text in named:
        assert text in wrong, wrong
    assert "cannot be compared" not in wrong and "changed; its sha256" not in wrong
