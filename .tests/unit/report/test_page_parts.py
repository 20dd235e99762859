"""The page's parts beside headline and tables of figures: failures and their logs, comparison, bins, and what a screen reader needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data, report_data_cluster
from builders.archived_run import ArchivedRun
from builders.loads import at_load
from builders.report_document import Document
from servemark.report import block, gather, roofline, views
from servemark.report.gaps import gaps
from servemark.report.page import render
from servemark.report.table import aggregate, tidy


@pytest.fixture(scope="module")
def demo():
    return Document(render(report_data.demo()))


@pytest.fixture(scope="module")
def troubled():
    return Document(render(report_data.troubled()))


def test_attempts_and_failures_link_to_the_excerpt_of_the_log(troubled):
    anchors = {attributes["id"] for _, attributes in troubled.tags if "id" in attributes}
    links = [attributes["href"][1:] for tag, attributes in troubled.tags if tag == "a"]
    assert {"gap-2", "gap-2-log", "attempt-1", "attempt-1-log"} <= set(links) <= anchors
    assert "The quoted lines in server.log with what is around them:" in troubled.words
    assert "Initializing a V1 LLM engine" in troubled.words


def test_a_start_up_time_stands_beside_what_the_start_found(demo, troubled):
    assert demo.words.count("caches of an earlier start") == 2
    assert "not known await_ready failed" in troubled.words, "a deployment that never started found nothing"


def test_how_each_load_was_made_is_told_with_the_busiest_accepted_repetition():
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
    text = Document(render(data)).words
    assert "3one replica, past the router57.0" in text and "1the endpoint\N{EN DASH}" in text


def test_a_gap_of_one_point_names_the_known_remedy_first():
    (gap, _) = gaps(report_data.troubled())
    assert gap.remedy.startswith("Read the errors in the raw result file and the server's log. Run snakemake again:")


def test_what_is_not_known_or_not_compared_is_said(demo):
    assert "No two deployments have the same number: plain (1 rank), ray-tp2 (2 ranks). Nothing is compared." in demo.words
    assert "Not known. The deployments ran on a CPU, whose memory bandwidth and arithmetic peak are not probed." in demo.words


def test_equal_resources_are_compared_and_the_roofline_share_is_stated():
    words_of = Document(render(report_data_cluster.two_nodes())).words
    assert "chat on 8 GPUs" in words_of and "Alone with their number: plain (1 GPU)." in words_of
    assert "baseline" in words_of and "Share of the roofline" in words_of and "Not known" not in words_of


def test_a_share_of_the_roofline_that_nobody_reaches_is_questioned(monkeypatch):
    data = report_data_cluster.two_nodes()
    doubt = "is more than software reaches, so something was not done that the bound counts"
    found, _ = roofline.shares(views.medians(aggregate(tidy(data.measurements))), data)
    highest = max(share.part for share in found)
    monkeypatch.setattr(roofline, "TOO_GOOD", highest * 1.001)
    assert doubt not in Document(render(data)).words
    monkeypatch.setattr(roofline, "TOO_GOOD", highest * 0.999)
    assert sum(share.doubtful for share in found) == 1
    assert Document(render(data)).words.count(doubt) == 1


def test_no_request_is_on_the_page_only_counts(demo):
    assert all(
        isinstance(count, int)
        for load in demo.block["distributions"]
        for bins in load.values()
        for of in bins["counts"].values()
        for count in of
    )
    (text,) = (text for _, attributes, text in demo.raw if attributes.get("id") == block.ID)
    assert len(text) < 60_000


def test_a_run_is_gathered_with_its_bins_timelines_attempts_and_excerpts(tmp_path):
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
    assert len(gather.gather(run.folder).timelines) == 7, "one of another measurement is not shown"


def test_every_table_has_a_caption_and_every_head_a_scope(troubled):
    tags = [tag for tag, _ in troubled.tags]
    assert tags.count("caption") == tags.count("table") > 5
    assert all("scope" in attributes for tag, attributes in troubled.tags if tag == "th")
    regions = [attributes for _, attributes in troubled.tags if attributes.get("role") == "region"]
    assert all(attributes.get("tabindex") == "0" and attributes["aria-label"] for attributes in regions)
    labels = [attributes["aria-label"] for attributes in regions]
    assert len(labels) == len(set(labels)), "two places of one name cannot be told apart"
