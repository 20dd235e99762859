"""``servemark check``, the endpoint's how-to and docs/security.md warn of ports without authentication."""

from __future__ import annotations

import pytest
import yaml

from builders.paths import ROOT
from servemark.cli import main as cli
from servemark.planning import exposure
from servemark.records import Topology


@pytest.mark.parametrize(
    ("topology", "exclusive", "words"),
    [
        ({}, True, []),
        ({"tensor_parallel": 2, "executor": "mp"}, True, []),
        ({"nodes": 2, "replicas": 4, "executor": "mp"}, True, []),
        ({"tensor_parallel": 2, "executor": "ray"}, True, ["store"]),
        ({"nodes": 2, "tensor_parallel": 2, "executor": "ray"}, True, ["prompts"]),
        ({"nodes": 2, "pipeline_parallel": 2, "executor": "mp"}, True, ["prompts"]),
        ({"nodes": 2, "data_parallel": 2, "executor": "mp"}, True, ["prompts"]),
        ({"nodes": 4, "replicas": 2, "tensor_parallel": 2, "executor": "mp"}, False, ["prompts", "exclusive"]),
        ({}, False, ["exclusive"]),
    ],
)  # fmt: skip
def test_notes_name_ports_that_other_users_reach(topology, exclusive, words):
    found = exposure.notes(Topology(**topology), exclusive=exclusive)
    assert len(found) == len(words)
    assert all(word in note for word, note in zip(words, found, strict=True))


def test_check_warns_of_ranks_on_several_or_shared_nodes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    one, *_ = config["deployments"].values()
    config["deployments"] = {
        "inside": one | {"topology": {"tensor_parallel": 2}},
        "over": one | {"topology": {"nodes": 2, "tensor_parallel": 2, "executor": "ray"}},
    }
    site = tmp_path / "site.yaml"
    for exclusive, counts in ((True, [0, 1]), (False, [1, 2])):
        site.write_text(yaml.safe_dump({"scheduler": "slurm", "gpus_per_node": 4, "exclusive": exclusive}))
        path = tmp_path / "my.yaml"
        path.write_text(yaml.safe_dump(config | {"cluster": str(site)}))
        assert cli.main(["check", str(path)]) == 0
        _, inside, over = capsys.readouterr().out.replace("  over:", "  inside:").split("  inside:")
        assert [part.count(exposure.PAGE) for part in (inside, over)] == counts


def test_security_page_exists_and_is_linked():
    assert (ROOT / exposure.PAGE).is_file()
    assert exposure.PAGE in (ROOT / "README.md").read_text()
