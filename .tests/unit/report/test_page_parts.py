"""Other parts of the report: failures, comparison, bins, and attributes for screen readers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data, report_data_cluster
from builders.archived_run import ArchivedRun
from builders.loads import at_load
from builders.report_document import Document
from servemark.measurement.reasons import TABLE
from servemark.records import Accuracy, Failure, PlannedCheck
from servemark.report import comparison, formatting, gather, page, starting, views
from servemark.report.gaps import gaps
from servemark.report.page import render
from servemark.report.table import aggregate, tidy


@pytest.fixture(scope="module")
def demo():
    return Document(render(report_data.demo()))


@pytest.fixture(scope="module")
def troubled():
    return Document(render(report_data.troubled()))


def test_attempts_link_to_their_failures(troubled):
    anchors = {attributes["id"] for _, attributes in troubled.tags if "id" in attributes}
    links = [attributes["href"][1:] for tag, attributes in troubled.tags if tag == "a"]
    assert {"gap-2", "attempt-1"} <= set(links) <= anchors


def test_startup_time_is_shown_with_compile_cache_state(demo, troubled):
    found = starting.caches(report_data.startup())
    assert demo.words.count(found) == 2
    (row,) = [row for row in troubled.cells("startup") if row[0] == "tp4"]
    assert found not in row and "server_exited" in row[-1]


def test_clients_are_shown_with_busiest_accepted_repetition():
    data = report_data.demo()
    plain = [item for item in data.measurements if item.deployment == "plain" and item.load.concurrency == 8]
    shares = iter((0.41, 0.57))
    changed = [
        at_load(item.model_copy(update={"client_cpu": next(shares)}), clients=3, ask="replica") if item in plain else item
        for item in data.measurements
    ]
    lost = report_data.invalid(clients=3, client_cpu=0.99)
    data = replace(data, measurements=[*changed, lost])
    row = {"deployment": "plain", "workload": plain[0].load.workload, "load": "concurrency\N{NO-BREAK SPACE}8"}
    (found,) = [each for each in views.clients(data) if each["clients"] == 3]
    assert found == row | {"clients": 3, "ask": "replica", "cpu": pytest.approx(57)}
    rows = [row[3:] for row in Document(render(data, bundle="")).cells("setup") if len(row) == 6]
    assert ("3", formatting.asked("replica"), "57.0") in rows and ("1", formatting.asked("endpoint"), "\N{EN DASH}") in rows


def test_gap_remedy_begins_with_remedy_of_reason():
    (gap, _) = gaps(report_data.troubled())
    assert gap.failure.remedy.startswith(TABLE["requests_failed"].remedy)


def test_cpu_deployments_of_different_size_have_no_comparison(demo):
    assert not demo.cells("comparison")
    _, (why,) = comparison.shares([], report_data.demo())
    assert why in demo.words


def test_equal_resources_have_comparison_and_roofline_share():
    shown = Document(render(report_data_cluster.two_nodes(), bundle=""))
    assert len(shown.cells("comparison")) == 6 and {row[0] for row in shown.cells("comparison")} == {"tp2-x4", "tp4-pp2-ray"}
    assert len([row for row in shown.cells("memory") if len(row) == 7]) == 9


def test_too_high_roofline_share_gets_note(monkeypatch):
    data = report_data_cluster.two_nodes()
    found, _ = comparison.shares(views.medians(aggregate(tidy(data.measurements))), data)
    highest = max(share.part for share in found)

    def notes():
        return [attributes.get("class") for _, attributes in Document(render(data, bundle="")).tags].count("note")

    monkeypatch.setattr(comparison, "TOO_GOOD", highest * 1.001)
    before = notes()
    monkeypatch.setattr(comparison, "TOO_GOOD", highest * 0.999)
    assert [share.part for share in found if share.doubtful] == [highest] and notes() == before + 1


def test_distributions_contain_only_counts(demo):
    assert all(
        isinstance(count, int)
        for load in demo.block["distributions"]
        for bins in load.values()
        for of in bins["counts"].values()
        for count in of
    )
    (text,) = (text for _, attributes, text in demo.raw if attributes.get("id") == page.BLOCK_ID)
    assert len(text) < 60_000


def test_gathered_run_has_distributions_timelines_and_attempts(tmp_path):
    run = ArchivedRun(tmp_path)
    data = gather.gather(run.folder)
    assert [(item.concurrency, sum(item.metrics["ttft"].counts["plain"])) for item in data.distributions] == [
        (1, 16),
        (2, 16),
    ]
    assert len(data.timelines) == 8
    assert [(item.deployment, item.outcome) for item in data.attempts] == [
        ("ray-tp2", "ended as planned"), ("plain", "ended as planned"), ("broken", "failed"),
    ]  # fmt: skip
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda record: record.update(started_at="2026-03-05T10:12:44+00:00"))
    assert len(gather.gather(run.folder).timelines) == 7, "a timeline of another measurement is ignored"


def test_every_table_has_caption_and_header_scope(troubled):
    tags = [tag for tag, _ in troubled.tags]
    assert tags.count("caption") == tags.count("table") > 5
    assert all("scope" in attributes for tag, attributes in troubled.tags if tag == "th")
    regions = [attributes for _, attributes in troubled.tags if attributes.get("role") == "region"]
    assert all(attributes.get("tabindex") == "0" and attributes["aria-label"] for attributes in regions)
    labels = [attributes["aria-label"] for attributes in regions]
    assert len(labels) == len(set(labels)), "each region has its own label"


def test_accuracy_checks_are_shown_with_their_minimum_and_gap():
    data = report_data.demo()
    check = PlannedCheck(name="gsm8k", limit=200, lock="a" * 64, key="b" * 64)
    done = Accuracy(deployment="plain", check=check, key_parts={}, metric="acc,none", value=0.85, stderr=0.025, samples=200)
    failure = Failure(stage="check_accuracy", reason="accuracy_data_unreachable", detail="No network.")
    lost = Accuracy(deployment="plain", check=check.model_copy(update={"name": "arc_easy"}), key_parts={}, failure=failure)
    deployments = {**data.config["deployments"], "plain": {"checks": {"gsm8k": {"min": 0.9}, "arc_easy": {"min": 0.5}}}}
    data = replace(data, accuracy={"plain": [done, lost]}, config={**data.config, "deployments": deployments})
    shown = Document(render(data, bundle=""))
    assert ["plain", "gsm8k", "acc,none", "0.850", "0.0250", "0.900", "no", "200"] in [list(row) for row in shown.cells("accuracy")]
    (gap,) = [gap for gap in gaps(data) if gap.failure.reason == "accuracy_data_unreachable"]
    assert gap.points == ["accuracy check arc_easy"]


def test_report_without_accuracy_checks_has_no_such_section(demo):
    assert "accuracy" not in page.content(report_data.demo()).block
    assert "accuracy" not in {attributes.get("id") for _, attributes in demo.tags}
