"""Deleted files that Snakemake does not check are restored before it starts."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders import report_data
from builders.measured import record
from builders.places import site_packages
from servemark.config.model import Config
from servemark.environments.build import MARKER
from servemark.measurement.ledger import Ledger
from servemark.records import Accuracy, Environment, Manifest, Measurement, Plan, PlannedCheck, PlannedSearch, Reason, Search, SearchTrial
from servemark.run import restore
from servemark.weights import staging

POINTS = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("chat-c1", "chat-c2")}


@dataclass
class Run:
    """A finished run of one deployment in its own folder."""

    folder: Path
    config: Config
    ledger: Ledger
    manifest: Path
    environment: Path

    def make_good(self) -> list[str]:
        return restore.make_good(self.folder, self.config)

    def point(self, name: str) -> Path:
        return self.folder / "deployments" / "plain" / "points" / f"{name}.json"

    def raw(self, name: str) -> Path:
        return self.point(name).with_name(f"{name}.requests.json")


@pytest.fixture
def run(tmp_path, told, monkeypatch) -> Run:
    monkeypatch.chdir(tmp_path)
    config = Config.model_validate(
        {
            "run": "demo",
            "models": {"tiny": {"source": "builtin:tiny-dense"}},
            "environments": {"cpu": {"lock": "cpu"}},
            "deployments": {"plain": {"model": "tiny", "environment": "cpu"}},
            "workloads": {
                "chat": {"dataset": "random", "input_tokens": 8, "output_tokens": 5, "requests": 4, "concurrency": [1, 2]}
            },
            "cache": "cache",
        }
    )  # fmt: skip
    folder, prefix = Path("results/demo"), tmp_path / "cache" / "environments" / "cpu-0123"
    made = Run(
        folder, config, Ledger(config.ledger_folder), folder / "models/tiny/manifest.json", folder / "environments/cpu/environment.json"
    )  # fmt: skip
    staging.stage("tiny", "builtin:tiny-dense", Path("cache"), told).write(made.manifest)
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").touch()
    built = report_data.environment("cpu").model_copy(update={"prefix": str(prefix), "python": str(prefix / "bin" / "python")})
    built.write(made.environment)
    built.write(prefix / MARKER)
    points = [
        record(key=key, name=name, raw=name.encode()).model_copy(update={"raw": f"{name}.requests.json"}) for name, key in POINTS.items()
    ]
    report_data.plan(points=tuple(points)).write(folder / "deployments" / "plain" / "plan.json")
    for point in points:
        point.write(made.point(point.load.name))
        made.raw(point.load.name).write_text(point.load.name)
        made.ledger.store(point.key, point, made.raw(point.load.name))
    return made


def test_complete_run_stays_unchanged(run: Run):
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    assert run.make_good() == []
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("lost", ["", "raw.json", "measurement.json"])
def test_deleted_measurement_is_restored_from_its_record(run: Run, lost: str):
    key = POINTS["chat-c1"]
    entry = run.ledger.root / key[:2] / key
    if lost:
        (entry / lost).unlink()
    else:
        shutil.rmtree(entry)
    assert run.ledger.missing(POINTS.values()) == (key,)
    (message,) = run.make_good()
    assert message.startswith("1 ")
    assert run.ledger.missing(POINTS.values()) == ()
    assert run.ledger.find(key).raw.read_text() == "chat-c1"


@pytest.mark.parametrize("also", ["record", "raw", "other raw", "INVALID", "interrupted", "plan", "broken record"])
def test_point_without_matching_record_is_not_restored(run: Run, also: str):
    path, raw = run.point("chat-c1"), run.raw("chat-c1")
    shutil.rmtree(run.ledger.root)
    run.point("chat-c2").unlink()
    match also:
        case "record":
            path.unlink()
        case "raw":
            raw.unlink()
        case "other raw":
            raw.write_text("other")
        case "INVALID":
            Measurement.read(path).model_copy(update={"verdict": "INVALID"}).write(path)
        case "interrupted":
            reason = Reason(code="interrupted", severity="SUSPECT", detail="x")
            changes = {"verdict": "SUSPECT", "reasons": (reason,)}
            Measurement.read(path).model_copy(update=changes).write(path)
        case "plan":
            (run.folder / "deployments" / "plain" / "plan.json").unlink()
        case "broken record":
            path.write_text("{")
    assert run.make_good() == []
    assert run.ledger.missing(POINTS.values()) == tuple(POINTS.values())


@pytest.mark.parametrize("old", ["key", "thresholds", "search", "targets", "check"])
def test_deployment_with_a_record_of_an_older_configuration_is_planned_again(run: Run, old: str):
    deployment = run.folder / "deployments" / "plain"
    path, plan = deployment / "plan.json", Plan.read(deployment / "plan.json")
    asked = PlannedSearch(workload="chat", variable="concurrency", low=1, high=8, trials=3)
    run.config = Config.model_validate(run.config.model_dump(mode="json") | {"slo": {"ttft_ms": {"p50": 4}}})
    wanted = {"ttft_ms": {"p50": 4.0}}
    ended = Search(deployment="plain", asked=asked, targets=wanted, trials=(), meets=1, misses=None, ended="trials_used")
    check = PlannedCheck(name="math", limit=8, lock="c" * 64, key="a" * 64)
    result = Accuracy(deployment="plain", check=check, key_parts={})
    measured = Measurement.read(run.point("chat-c1"))
    plan.model_copy(update={"searches": (asked,), "checks": (check,)}).write(path)
    ended.write(Search.path(deployment, "chat"))
    result.write(deployment / "checks" / "math" / "accuracy.json")
    same = run.config.verdict.max_burst_fraction
    measured.model_copy(update={"thresholds": {"max_burst_fraction": same, "of_another_version": 3.0}}).write(run.point("chat-c1"))
    assert run.make_good() == [] and path.exists()
    match old:
        case "key":
            measured.model_copy(update={"key": "f" * 64}).write(run.point("chat-c1"))
        case "thresholds":
            measured.model_copy(update={"thresholds": {"max_burst_fraction": same / 2}}).write(run.point("chat-c1"))
        case "search":
            ended.model_copy(update={"asked": asked.model_copy(update={"high": 16})}).write(Search.path(deployment, "chat"))
        case "targets":
            ended.model_copy(update={"targets": {"ttft_ms": {"p50": 5.0}}}).write(Search.path(deployment, "chat"))
        case "check":
            changed = result.model_copy(update={"check": check.model_copy(update={"key": "b" * 64})})
            changed.write(deployment / "checks" / "math" / "accuracy.json")
    assert len(run.make_good()) == 1 and not path.exists()
    assert run.point("chat-c1").exists() and run.raw("chat-c1").exists()


def test_search_without_the_files_of_a_trial_is_made_again(run: Run):
    deployment = run.folder / "deployments" / "plain"
    plan = Plan.read(deployment / "plan.json")
    asked = PlannedSearch(workload="chat", variable="concurrency", low=1, high=8, trials=3)
    plan.model_copy(update={"points": (), "searches": (asked,)}).write(deployment / "plan.json")
    same = {"verdict": "VALID", "ratio": 0.5, "met": True, "decision": "meets", "meets": 1, "misses": None}
    trials = tuple(SearchTrial(point=point, value=1, **same) for point in plan.points)
    path = Search.path(deployment, "chat")
    ended = Search(deployment="plain", asked=asked, targets={}, trials=trials, meets=1, misses=None, ended="trials_used")
    ended.write(path)
    shutil.rmtree(run.ledger.root)
    assert len(run.make_good()) == 1 and path.exists()
    assert run.ledger.missing(POINTS.values()) == (), "trials are restored like other points"
    run.raw("chat-c2").unlink()
    assert run.make_good() == [] and not path.exists()


def test_missing_model_loses_its_record_unless_it_is_local(run: Run, told):
    folder = Path(Manifest.read(run.manifest).path)
    local = shutil.copytree(folder, "local")
    shutil.rmtree(folder)
    (message,) = run.make_good()
    assert "tiny" in message and str(folder) in message
    assert not run.manifest.exists() and run.environment.exists()
    staging.stage("tiny", str(local), Path("cache"), told).write(run.manifest)
    shutil.rmtree(local)
    assert run.make_good() == [] and run.manifest.exists(), "only its owner can restore it"


def test_missing_model_of_the_hub_loses_its_record(run: Run):
    here = Manifest.read(run.manifest)
    here.model_copy(update={"source": "hf:org/name@main (commit 0123)"}).write(run.manifest)
    (Path(here.path) / "tokenizer.json").unlink()
    assert run.make_good() == [], "a stage refuses an incomplete model by name"
    shutil.rmtree(here.path)
    assert len(run.make_good()) == 1 and not run.manifest.exists()


def test_created_model_that_lost_a_file_is_deleted(run: Run, told):
    before = Manifest.read(run.manifest)
    (Path(before.path) / "tokenizer.json").unlink()
    assert len(run.make_good()) == 1 and not run.manifest.exists()
    assert staging.stage("tiny", "builtin:tiny-dense", Path("cache"), told) == before


@pytest.mark.parametrize("lost", ["", "bin"])
def test_missing_environment_loses_its_record_and_marker(run: Run, lost: str):
    prefix = Path(Environment.read(run.environment).prefix)
    shutil.rmtree(prefix / lost)
    (message,) = run.make_good()
    assert "cpu" in message and str(prefix) in message
    assert not run.environment.exists() and not (prefix / MARKER).exists() and run.manifest.exists()


def test_existing_prefix_keeps_its_record(run: Run):
    given = Environment.read(run.environment)
    given.model_copy(update={"origin": "prefix"}).write(run.environment)
    shutil.rmtree(given.prefix)
    assert run.make_good() == [] and run.environment.exists()


def test_first_run_has_nothing_to_restore(run: Run):
    shutil.rmtree("results")
    assert run.make_good() == [] and not Path("results").exists()


def test_changed_environment_loses_its_record(run: Run, standin_copy):
    standin_copy.write(run.environment)
    assert run.make_good() == [] and run.environment.exists()
    (site_packages(standin_copy) / "torch" / "__init__.py").write_text("# patched")
    (message,) = run.make_good()
    assert standin_copy.prefix in message and not run.environment.exists()


def test_environment_that_cannot_be_compared_keeps_its_record(run: Run, standin_copy):
    other = {"digest": "0" * 64}
    for changes in ({**other, "prefix": "/no/such/folder"}, {**other, "files": None}):
        standin_copy.model_copy(update=changes).write(run.environment)
        assert run.make_good() == [] and run.environment.exists()
