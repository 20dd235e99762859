"""What runs again after a change or a loss: one case for each row of the table in docs/explanation/ledger.md."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.harness import ROOT, RUN, Checkout

HERE = Path(__file__).parent
FINAL_CHECK = {"check_measurements"}
ARCHIVE = {"archive_results"} | FINAL_CHECK
PAGE = {"write_report"} | ARCHIVE
TABLE = {"collect_measurements"} | PAGE
STAGES = (
    "start_cluster",
    "check_fabric",
    "serve_model",
    "await_ready",
    "measure",
    "stop_deployment",
    "account_allocation",
)
ENVIRONMENT = {"build_environment/standin", "check_environment/standin"}


def stages(*deployments: str) -> set[str]:
    """Return the stages of these deployments and all rules after them."""
    return {f"{rule}/{deployment}" for rule in STAGES for deployment in deployments} | TABLE


def plans(*deployments: str) -> set[str]:
    """Return the rules from the plans of these deployments on; confirming plans again reruns no other deployment."""
    return {f"plan_deployment/{deployment}" for deployment in deployments} | {"confirm_plans"} | stages(*deployments)


class Case(NamedTuple):
    """A change to a finished run, and the jobs of the next run."""

    do: Callable[[Checkout], object]
    runs: set[str]


def lose(*names: str) -> Callable[[Checkout], None]:
    """Delete files or folders of the run."""

    def do(checkout: Checkout) -> None:
        for path in (checkout.results / name for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return do


def edit(*names: str) -> Callable[[Checkout], None]:
    """Change files of the workflow, but not their effect."""

    def do(checkout: Checkout) -> None:
        for name in names:
            with (checkout.path / "workflow" / name).open("a") as stream:
                stream.write("\n# edited\n" if name.endswith(".py") else "\n")

    return do


def library(*names: str) -> Callable[[Checkout], None]:
    return edit(*(f"lib/servemark/{name}.py" for name in names))


def export(**variables: str) -> Callable[[Checkout], None]:
    """Export these variables in the shell that starts Snakemake."""
    return lambda checkout: checkout.exported.update(variables)


def tighten(checkout: Checkout) -> None:
    checkout.config["verdict"]["max_burst_fraction"] = 0.8


def aim(checkout: Checkout) -> None:
    checkout.config["slo"] = {"ttft_ms": {"p50": 500}}


FORETOLD = {
    "shell": {
        "decides": Case(export(NCCL_ALGO="Ring"), plans("a", "b")),
        "tells": Case(export(NCCL_DEBUG="INFO", TRITON_CACHE_DIR="/tmp/x", OMP_NUM_THREADS="4", LD_LIBRARY_PATH="/opt/x"), set()),
    },
    "thresholds": {"": Case(tighten, stages("a", "b"))},
    "targets": {"": Case(aim, TABLE)},
    "template": {"": Case(edit("templates/report.html.j2"), PAGE)},
    # One rule of each kind; test_code_digest.py tests the digest of each rule.
    "code": {
        "hardware": Case(library("machine/hardware"), {"probe_hardware"} | ENVIRONMENT | plans("a", "b")),
        "plan": Case(library("planning/memory"), plans("a", "b")),
        "judging": Case(library("measurement/statistics"), stages("a", "b")),
        "page": Case(library("report/gaps"), PAGE),
        "archive": Case(library("archive/seal"), ARCHIVE),
    },
    "other-code": {
        "": Case(
            library(
                *("progress", "processes/identity", "supervisor/__main__", "launch/command_lines"),
                *("deployment/readiness", "cli/main"),
            ),
            set(),
        ),
    },
    "given": {
        "hardware": Case(lose("hardware.json"), {"probe_hardware"} | ENVIRONMENT | plans("a", "b")),
        "environment": Case(lose("environments/standin/environment.json"), ENVIRONMENT | plans("a", "b")),
        "check": Case(lose("environments/standin/check.json"), {"check_environment/standin"} | plans("a", "b")),
        "manifest": Case(lose("models/tiny/manifest.json"), {"stage_weights/tiny"} | plans("a", "b")),
    },
    "plan": {
        "plan": Case(lose("deployments/a/plan.json"), plans("a")),
        "plans": Case(lose("plans.json"), {"confirm_plans"} | stages("a", "b")),
    },
    "records": {
        "raw": Case(lose("deployments/a/points/chat-c1-r1.requests.json"), stages("a")),
        "fabric": Case(lose("deployments/a/fabric.json"), stages("a")),
        "startup": Case(lose("deployments/a/startup.json"), stages("a")),
        "stopped": Case(lose("deployments/a/stopped.json"), stages("a")),
        "all": Case(lose("deployments/a"), plans("a")),
    },
    "accounting": {"": Case(lose("deployments/a/accounting.json"), {"account_allocation/a"} | TABLE)},
    "results": {
        "csv": Case(lose("measurements.csv"), TABLE),
        "page": Case(lose("report.html"), PAGE),
        "archive": Case(lose(f"archive/{RUN}.tar.zst"), ARCHIVE),
        "digest": Case(lose(f"archive/{RUN}.tar.zst.sha256"), ARCHIVE),
        "final check": Case(lose("check.json"), FINAL_CHECK),
    },
    "history": {
        "": Case(lose("logs", "benchmarks", "progress.jsonl", "summary.txt", "deployments/a/attempts", "deployments/b/owner"), set())
    },
}  # fmt: skip
"""Rows whose jobs Snakemake can tell without running them, and their variants."""

ELSEWHERE = {
    "checks": "test_low_accuracy_makes_points_suspect_and_failed_check_runs_alone_again",
    "exports": "test_exports_and_publish_measure_nothing_and_publish_runs_once",
    "publish": "test_exports_and_publish_measure_nothing_and_publish_runs_once",
    "topologies": "test_choice_is_made_once_and_survives_reruns",
    "nothing": "test_first_run_measures_all_and_second_does_nothing",
    "failure": "test_server_that_never_starts_is_named_and_twice_is_a_permanent_gap",
    "record": "test_deleted_record_is_restored_from_ledger",
    "point": "test_added_concurrency_measures_only_its_points",
    "damage": "test_damaged_ledger_entry_is_measured_again",
    "lock": "test_changed_lock_file_rebuilds_its_environments",
    "option": "test_changed_option_reruns_only_its_deployment",
    "time-outs": "test_changed_timeouts_and_templates_rewrite_report_and_archive",
    "ledger": "test_files_restored_by_main_process_rerun_nothing",
    "both": "test_lost_files_are_restored_and_only_lost_results_remeasured",
    "cache": "test_missing_model_loses_its_record_unless_it_is_local",
    "installed": "test_edited_package_measures_again_and_a_moved_one_does_not",
    "content": "test_changed_file_of_an_option_reruns_only_its_deployment",
}
"""Rows with a test of their own, here or in another file."""

CASES = [(row, variant) for row, variants in FORETOLD.items() for variant in variants]


@pytest.fixture(scope="module")
def foretold(measured_checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future]]:
    """Return the jobs of each case, from dry runs in copies of a finished run, two at a time (a dry run uses one core)."""
    base = tmp_path_factory.mktemp("foretold")

    def look(row: str, variant: str) -> set[str]:
        path = base / f"{row}-{variant}"
        shutil.copytree(measured_checkout.path, path)
        checkout = Checkout(path, measured_checkout.runtime, measured_checkout.config)
        FORETOLD[row][variant].do(checkout)
        try:
            return checkout.foretold()
        finally:
            shutil.rmtree(path)

    with ThreadPoolExecutor(2) as pool:
        yield {case: pool.submit(look, *case) for case in CASES}


@pytest.mark.parametrize(("row", "variant"), CASES, ids=["-".join(filter(None, case)) for case in CASES])
def test_what_runs_again(foretold: dict[tuple[str, str], Future], row: str, variant: str):
    assert foretold[row, variant].result() == FORETOLD[row][variant].runs


def test_changed_option_reruns_only_its_deployment(measured: Checkout):
    before, other = measured.started_at("a"), measured.digests("b")
    measured.config["deployments"]["a"]["options"]["max-num-seqs"] = 8
    begin = time.time()

    again = measured.run()

    assert again.rc == 0, again.text
    assert measured.ran(begin) == plans("a")
    assert all(when > max(before.values()) for when in measured.started_at("a").values())
    assert measured.digests("b") == other and len(measured.attempts("b")) == 1


def test_edit_before_an_interrupted_run_reaches_every_deployment(measured: Checkout):
    # confirm_plans has to run, which hides the changed plan of a and the changed thresholds of b from Snakemake.
    measured.config["deployments"]["a"]["options"]["max-num-seqs"] = 8
    tighten(measured)
    assert measured.run("--until", "plan_deployment").rc == 0
    keys = {point["load"]["name"]: point["key"] for point in measured.record("deployments/a/plan.json")["points"]}
    assert {name: point["key"] for name, point in measured.points("a").items()} != keys
    looking = measured.run("-n")
    assert looking.rc == 0 and re.search(r"^servemark: .*\ba, b\b", looking.text, re.MULTILINE), looking.text
    begin = time.time()

    again = measured.run()

    assert again.rc == 0, again.text
    assert measured.ran(begin) == plans("a", "b")
    assert {name: point["key"] for name, point in measured.points("a").items()} == keys
    assert {point["thresholds"]["max_burst_fraction"] for point in measured.points("b").values()} == {0.8}


def test_edited_package_measures_again_and_a_moved_one_does_not(measured: Checkout, tmp_path: Path):
    measured.keep("a")
    before = measured.started_at("a")
    moved = tmp_path / "moved"
    shutil.copytree(measured.config["environments"]["standin"]["prefix"], moved, symlinks=True)
    measured.config["environments"]["standin"]["prefix"] = str(moved)

    again = measured.run()

    assert again.rc == 0, again.text
    assert measured.started_at("a") == before
    (module,) = moved.glob("lib/python*/site-packages/torch/__init__.py")
    module.write_text(f"{module.read_text()}\n# edited, with the same version\n")
    begin = time.time()

    again = measured.run()

    assert again.rc == 0 and "have changed" in again.text, again.text
    assert measured.ran(begin) == ENVIRONMENT | plans("a")
    assert min(measured.started_at("a").values()) > max(before.values())


def test_changed_file_of_an_option_reruns_only_its_deployment(measured: Checkout):
    template = measured.path / "template.jinja"
    template.write_text("one")
    measured.config["deployments"]["a"]["options"]["chat-template"] = "template.jinja"
    done = measured.run("--until", "plan_deployment")
    assert done.rc == 0, done.text
    first = measured.record("deployments/a/plan.json")
    assert first["key_parts"]["options"]["chat-template"] == f"sha256:{first['contents']['template.jinja']}"
    template.write_text("two")

    assert measured.foretold() == plans("a")

    done = measured.run("--until", "plan_deployment")
    assert done.rc == 0, done.text
    again = measured.record("deployments/a/plan.json")
    assert {point["key"] for point in again["points"]}.isdisjoint(point["key"] for point in first["points"])


def test_inherited_variable_is_in_plan_and_key_unless_configured(checkout: Checkout):
    checkout.config["deployments"]["b"]["variables"] = {"NCCL_ALGO": "Tree"}
    export(NCCL_ALGO="Ring", OMP_NUM_THREADS="4", TRITON_CACHE_DIR="/tmp/x")(checkout)

    done = checkout.run("--until", "plan_deployment")

    assert done.rc == 0 and "NCCL_ALGO" in done.text, done.text
    a, b = (checkout.record(f"deployments/{name}/plan.json") for name in "ab")
    assert (a["inherited"], a["variables"]) == ({"NCCL_ALGO": "Ring"}, {})
    assert (b["inherited"], b["variables"]) == ({}, {"NCCL_ALGO": "Tree"})
    assert [plan["key_parts"]["variables"] for plan in (a, b)] == [{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}]


def test_changed_timeouts_and_templates_rewrite_report_and_archive(measured: Checkout):
    measured.config["timeouts"]["start"] = 31.0
    style = measured.path / "workflow" / "templates" / "report.css"
    style.write_text(style.read_text() + "\n/* another style */\n")
    records = measured.digests("a") | measured.digests("b")
    begin = time.time()

    again = measured.run()

    assert again.rc == 0, again.text
    assert measured.ran(begin) == PAGE
    assert "/* another style */" in measured.report() and measured.digests("a") | measured.digests("b") == records
    assert measured.archived()["report.html"].decode() == measured.report()
    assert b'"start": 31.0' in measured.archived()["config.json"]


def test_changed_lock_file_rebuilds_its_environments(measured: Checkout):
    measured.config["environments"]["locked"] = {"lock": "cpu"}
    measured.config["deployments"]["b"]["environment"] = "locked"
    record = measured.results / "environments" / "locked" / "environment.json"
    record.parent.mkdir()
    shutil.copyfile(measured.results / "environments" / "standin" / "environment.json", record)
    target = str(record.relative_to(measured.path))
    assert measured.foretold(target) == set()
    with (measured.path / "envs" / "cpu.lock").open("a") as stream:
        stream.write("# another list\n")
    assert measured.foretold(target) == {"build_environment/locked"}


def test_files_restored_by_main_process_rerun_nothing(measured: Checkout):
    stored = {path: path.read_bytes() for path in measured.results.glob("ledger/*/*/raw.json")}
    lose("ledger", "config.json", "sources.json")(measured)
    begin = time.time()

    again = measured.run()

    assert again.rc == 0 and "4 measurement(s) were missing in the ledger" in again.text, again.text
    assert measured.ran(begin) == set() and "Nothing to be done" in again.text
    assert {path: path.read_bytes() for path in measured.results.glob("ledger/*/*/raw.json")} == stored
    assert len(list(measured.results.glob("ledger/*/*/measurement.json"))) == len(stored) == 4
    assert (measured.results / "config.json").exists() and (measured.results / "sources.json").exists()


def test_lost_files_are_restored_and_only_lost_results_remeasured(measured: Checkout):
    before, other, raw = measured.started_at("a"), measured.started_at("b"), measured.digests("b")
    key = measured.points("a")["chat-c1-r1"]["key"]
    kept = ("logs", "benchmarks", "ledger", "attempts")
    products = [path for path in measured.results.rglob("*.*") if path.is_file() and not set(kept) & set(path.parts)]
    for path in products:
        path.unlink()
    lose(f"ledger/{key[:2]}/{key}")(measured)
    # The model's files too: it is staged in its own cache.
    measured.config["cache"] = "results/cache"
    # servemark was also updated, in code that every rule uses.
    library("records/base")(measured)

    again = measured.run()

    assert again.rc == 0, again.text
    assert [path for path in products if not path.exists()] == []
    assert len(products) > 30
    after = measured.started_at("a")
    assert after.pop("chat-c1-r1") > max(before.values())
    assert after == {"chat-c2-r1": before["chat-c2-r1"]} and measured.started_at("b") == other
    assert {name: digest for name, digest in measured.digests("b").items() if "requests" in name}.items() <= raw.items()
    assert (len(measured.attempts("a")), len(measured.attempts("b"))) == (2, 1)
    assert Path(measured.record("models/tiny/manifest.json")["path"]).is_relative_to(measured.path)
    measured.assert_all_dead()


def test_every_row_of_the_ledger_table_has_a_test():
    text = (ROOT / "docs" / "explanation" / "ledger.md").read_text()
    table = text.partition("| row | you change or lose |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 15
    assert set(rows) == FORETOLD.keys() | ELSEWHERE.keys()
    tests = "".join(path.read_text() for path in [*HERE.glob("test_*.py"), *(HERE.parent / "unit").rglob("test_*.py")])
    assert [name for name in ELSEWHERE.values() if f"def {name}(" not in tests] == []
