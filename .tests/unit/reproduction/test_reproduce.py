"""``servemark reproduce`` without ``--yes``: the written files, what is stated, refusals that leave nothing behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from builders.archived_run import ArchivedRun
from builders.paths import ROOT
from servemark.cli import main as cli
from servemark.cli import reproduce as reproduce_command
from servemark.config import load
from servemark.environments import lockfiles
from servemark.errors import ConfigError
from servemark.machine import hardware
from servemark.records import Gpu
from servemark.reproduction import prepare
from servemark.reproduction.archived import Archived


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the parts of a checkout that the command reads."""
    place = tmp_path / "checkout"
    place.mkdir()
    shutil.copy(ROOT / "Snakefile", place)
    shutil.copytree(ROOT / "config", place / "config")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def run(built_run: ArchivedRun, tmp_path: Path) -> ArchivedRun:
    """Return a copy of a finished run that the test may change."""
    shutil.copytree(built_run.root, tmp_path / "there")
    return ArchivedRun.at(tmp_path / "there")


def reproduce(*words: object) -> int:
    return cli.main(["reproduce", *map(str, words)])


def config(folder: Path) -> dict:
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_files_are_written_and_the_configuration_is_valid(built_run, checkout, capsys):
    assert reproduce(built_run.path) == 0
    folder = checkout / "reproduced" / "demo-reproduced"
    found = load.load(folder.relative_to(checkout) / "config.yaml")
    assert (found.run, found.cluster, found.share_ledger) == ("demo-reproduced", None, False)
    assert (folder / "models/tiny/manifest.json").read_bytes() == (built_run.folder / "models/tiny/manifest.json").read_bytes()
    assert (folder / "envs/cpu.lock").is_file() and (folder / "environments/cpu/environment.json").is_file()
    before = json.loads((built_run.folder / "config.json").read_text())
    assert set(before) - set(config(folder)) == {"cache", "hub_cache", "share_ledger", "publish"}
    for room in ("deployments", "workloads", "models", "verdict"):
        assert config(folder)[room] == before[room]
    assert not (checkout / "results").exists()
    out = capsys.readouterr().out
    assert "--configfile reproduced/demo-reproduced/config.yaml" in out
    assert f"compare {built_run.path} results/demo-reproduced" in out


def test_other_lock_file_of_the_archive_is_used_and_named(built_run, checkout, capsys):
    assert reproduce(built_run.path, "again") == 0
    assert config(checkout / "again")["environments"]["cpu"]["lock"] == "again/envs/cpu.lock"
    assert config(checkout / "again")["run"] == "again"
    assert "again/envs/cpu.lock" in capsys.readouterr().out


def test_same_lock_file_keeps_its_name(built_run, checkout, monkeypatch):
    monkeypatch.setattr(lockfiles, "ENVS", built_run.root / "envs")
    assert reproduce(built_run.path) == 0
    assert config(checkout / "reproduced" / "demo-reproduced")["environments"]["cpu"]["lock"] == "cpu"


def test_differences_are_stated_before_anything_runs(built_run, checkout, capsys, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert reproduce(built_run.path) == 0
    out = capsys.readouterr().out
    stated = out[: out.index("wrote ")]
    for subject in ("servemark: ", "CPU: ", "host: node01 there", "NCCL_ALGO"):
        assert subject in stated


def test_publish_of_another_person_is_left_out_and_named(run, checkout, capsys):
    run.edit_json("config.json", lambda data: data.update(publish="rm -r /"))
    made = prepare.configuration.make(prepare.archived.Archived(prepare.archived.gather.read(run.folder), "", {}), Path("x"), "x", None)
    assert "publish" not in made.config
    assert any("publish" in note for note in made.notes)


def test_cluster_of_the_archive_becomes_a_cluster_file(run, checkout, capsys):
    site = {"scheduler": "slurm", "account": "theirs", "partition": None, "gpus_per_node": 0, "small_jobs": {"minutes": 15, "qos": None}}
    run.edit_json("config.json", lambda data: data.update(cluster=site))
    run.tabulate()
    run.report()
    run.seal()
    assert reproduce(run.path) == 0
    folder = checkout / "reproduced" / "demo-reproduced"
    cluster = yaml.safe_load((folder / "cluster.yaml").read_text())
    assert cluster == {"scheduler": "slurm", "account": "theirs", "gpus_per_node": 0, "small_jobs": {"minutes": 15}}
    out = capsys.readouterr().out
    assert "--profile profiles/slurm" in out and "theirs" in out
    assert reproduce(run.path, "mine", "--cluster", "slurm") == 0
    assert config(checkout / "mine")["cluster"] == "slurm"
    assert not (checkout / "mine" / "cluster.yaml").exists()


def test_nothing_is_overwritten(built_run, checkout):
    assert reproduce(built_run.path) == 0
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert reproduce(built_run.path) == 2
    (checkout / "results" / "other").mkdir(parents=True)
    assert reproduce(built_run.path, "other") == 2
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
    assert not (checkout / "other").exists()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink, lambda path: path.write_text("no archive")])
def test_bad_archive_exits_with_2_and_leaves_nothing(built_run, checkout, tmp_path, damage):
    path = Path(shutil.copy(built_run.path, tmp_path / "bad.tar.zst"))
    damage(path)
    before = sorted(checkout.rglob("*"))
    assert reproduce(path, "--yes") == 2
    assert sorted(checkout.rglob("*")) == before


def test_archive_that_contradicts_itself_exits_with_2(run, checkout):
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.update(output_throughput=1e6))
    run.seal()
    before = sorted(checkout.rglob("*"))
    assert reproduce(run.path) == 2
    assert sorted(checkout.rglob("*")) == before


def test_configuration_of_another_version_exits_with_2_and_leaves_nothing(built_run, checkout, capsys, monkeypatch):
    def refuse(path: Path) -> None:
        raise ConfigError(f"{path}: key_of_the_future is unknown")

    monkeypatch.setattr(prepare.config_load, "load", refuse)
    before = sorted(checkout.rglob("*"))
    assert reproduce(built_run.path) == 2
    assert "key_of_the_future" in capsys.readouterr().err
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("place", ["file/sub", "/proc/again"])
def test_folder_that_cannot_be_written_exits_with_2(built_run, checkout, capsys, place):
    (checkout / "file").write_text("")
    before = sorted(checkout.rglob("*"))
    assert reproduce(built_run.path, place) == 2
    assert place in capsys.readouterr().err
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("name", ["Upper", "with space", "x" * 81])
def test_folder_whose_name_is_no_run_exits_with_2(built_run, checkout, name):
    assert reproduce(built_run.path, name) == 2
    assert not (checkout / name).exists()


def test_other_folder_than_a_checkout_exits_with_2(built_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert reproduce(built_run.path) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_run_that_cannot_start_here_is_not_started(checkout, capsys):
    archive = ROOT / ".tests/fixtures/archives/h200x4-tp4.tar.zst"
    assert reproduce(archive, "--yes") == 2
    assert "environments.h200.prefix" in capsys.readouterr().out
    assert (checkout / "reproduced/h200x4-reproduced/config.yaml").is_file()
    assert not (checkout / "results").exists()


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """Return the commands that would run, in place of their run."""
    commands: list[list[str]] = []
    monkeypatch.setattr(reproduce_command, "_run", lambda argv: commands.append(argv) or 3)
    return commands


def on_gpus(run: ArchivedRun, monkeypatch, here: int) -> None:
    """Make the archive one of a CUDA environment with 2 ranks on a node, and this machine one with ``here`` GPUs."""
    run.edit_json("environments/cpu/check.json", lambda data: data.update(torch_cuda="13.0"))
    for name in ("plain", "broken"):
        run.edit_json(f"deployments/{name}/plan.json", lambda data: data["topology"].update(tensor_parallel=2, devices_per_node=2))
    files = {name: (run.folder / name).read_bytes() for name in ("config.json", "hardware.json")}
    archived = Archived(prepare.archived.gather.read(run.folder), "x", files)
    monkeypatch.setattr(prepare.archived, "read", lambda _: archived)
    gpus = (Gpu(name="NVIDIA H200", memory_mib=143771),) * here
    machine = hardware.probe().model_copy(update={"accelerator": "cuda" if here else "cpu", "gpus": gpus})
    monkeypatch.setattr(hardware, "probe", lambda: machine)


@pytest.mark.parametrize(("here", "code"), [(0, 2), (1, 2), (2, 3)])
def test_run_with_too_few_gpus_is_refused_before_it_starts(run, checkout, capsys, monkeypatch, started, here, code):
    on_gpus(run, monkeypatch, here)
    assert reproduce(run.path, "--yes") == code
    assert bool(started) == (code == 3)
    assert any("deployments.plain" in line for line in capsys.readouterr().out.splitlines()) == (code == 2)


def test_run_through_slurm_is_not_refused_for_the_gpus_of_this_machine(run, checkout, monkeypatch, started):
    on_gpus(run, monkeypatch, 0)
    assert reproduce(run.path, "--yes", "--cluster", "slurm") == 3 and started


def test_run_on_cpu_needs_no_gpus(built_run, checkout, started):
    assert reproduce(built_run.path, "--yes") == 3 and started


def test_hub_cache_of_the_archive_is_left_out_and_named(run, checkout):
    def notes() -> list[str]:
        archived = prepare.archived.Archived(prepare.archived.gather.read(run.folder), "", {})
        made = prepare.configuration.make(archived, Path("x"), "x", None)
        assert "hub_cache" not in made.config
        return [note for note in made.notes if "hub_cache" in note]

    assert notes() == []
    run.edit_json("config.json", lambda data: data.update(hub_cache="/site/hub"))
    assert len(notes()) == 1


@pytest.mark.parametrize(
    ("source", "pinned"),
    [("hf:org/name@main (commit " + "a" * 40 + ")", "hf:org/name@" + "a" * 40), ("hf:org/name@" + "b" * 40, None), ("/models/x", None)],
)
def test_branch_of_the_hub_becomes_the_measured_commit(built_run, source, pinned):
    records = prepare.archived.gather.read(built_run.folder)
    records.manifests["tiny"] = records.manifests["tiny"].model_copy(update={"source": source})
    made = prepare.configuration.make(prepare.archived.Archived(records, "", {}), Path("x"), "x", None)
    assert made.config["models"]["tiny"]["source"] == (pinned or records.config["models"]["tiny"]["source"])
    assert any("model tiny" in note for note in made.notes)
