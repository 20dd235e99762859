"""Content of the report: headline, gaps, setup, content security policy, escaped text."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import jinja2
import pytest

from builders import report_data
from builders.loads import at_load
from builders.report_document import Document
from servemark import records
from servemark.machine import visible_gpus
from servemark.report import formatting, page, views
from servemark.report.gaps import gaps
from servemark.report.page import render
from servemark.report.table import aggregate, tidy


@pytest.fixture(scope="module")
def demo():
    return Document(render(report_data.demo()))


@pytest.fixture(scope="module")
def troubled():
    return Document(render(report_data.troubled()))


def headline(data):
    return views.headlines(views.medians(aggregate(tidy(data.measurements))), data)


def test_report_is_one_file_under_one_and_a_half_megabytes(troubled):
    assert len(render(report_data.troubled()).encode()) < 1_500_000
    for tag, attributes in troubled.tags:
        assert tag not in ("link", "iframe", "object", "embed", "form", "base", "img")
        assert not {"src", "srcset", "style", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")


def test_policy_names_exactly_the_inlined_scripts_and_style(demo):
    (policy,) = (attributes["content"] for tag, attributes in demo.tags if "http-equiv" in attributes)
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in policy

    def hashes(tag):
        return {
            "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
            for name, attributes, text in demo.raw
            if name == tag and "type" not in attributes
        }

    assert set(directives["script-src"].split()) == hashes("script")
    assert set(directives["style-src"].split()) == hashes("style")
    assert len(hashes("script")) == 2


def test_hostile_text_is_escaped(troubled):
    assert "img" not in [tag for tag, _ in troubled.tags]
    assert report_data.HOSTILE in troubled.text
    assert "{{7*7}}" in troubled.text
    assert report_data.HOSTILE in troubled.json("drawings")["series"]


def test_json_elements_contain_no_html_characters(troubled):
    texts = [text for _, attributes, text in troubled.raw if attributes.get("type") == "application/json"]
    assert len(texts) == 2 and not any(set("<>&") & set(text) for text in texts)


def test_invalid_results_are_absent_from_report():
    html = render(report_data.troubled())
    for shown in (str(report_data.POISON), formatting.number(report_data.POISON), "98765", "98,765"):
        assert shown not in html


def test_secrets_in_options_and_configuration_are_hidden():
    base = report_data.demo()
    plans = {"plain": report_data.plan("plain", options={"api-key": "s3cret-a"}, variables={"HF_TOKEN": "s3cret-b"})}
    html = render(replace(base, plans=plans, config={"deployments": {"plain": {"options": {"api-key": "s3cret-c"}}}}))
    assert "s3cret" not in html
    assert "(hidden)" in html


def test_inherited_variables_are_shown():
    base = report_data.demo()
    plans = {"plain": report_data.plan("plain", inherited={"NCCL_ALGO": "Ring"}), "ray-tp2": base.plans["ray-tp2"]}
    html = render(replace(base, plans=plans))
    assert html.count("VLLM_CPU_KVCACHE_SPACE") == 2
    assert "NCCL_ALGO: Ring" in html and "NCCL_ALGO" not in render(base)


def lead(data):
    """Return the sentences below the title."""
    return re.search(r'<p class="lead">(.*?)</p>', render(data, bundle=""), re.DOTALL)[1].replace("\u00a0", " ")


def test_summary_golden():
    assert " ".join(re.sub("<[^>]*>", "", lead(report_data.demo())).split()) == (
        "2 deployments of 1 model: 12 of 12 measurements accepted, 1 of them SUSPECT; no gaps. "
        "Highest throughput: 810 output tokens/s from plain at concurrency 8."
    )


def test_summary_marks_a_suspect_best():
    base = report_data.demo()
    only = [item for item in base.measurements if item.deployment == "ray-tp2"]
    data = replace(base, measurements=only, plans={"ray-tp2": base.plans["ray-tp2"]}, config={}, startups={})
    assert lead(data).count("SUSPECT") == 2 and lead(base).count("SUSPECT") == 1


def test_verdicts_state_looser_thresholds():
    base = report_data.demo()
    loose = {"min_requests_per_slot": 2.0, "max_client_cpu": 0.5}
    data = replace(base, measurements=[item.model_copy(update={"thresholds": loose}) for item in base.measurements])
    accepted = sum(item.verdict != "INVALID" for item in base.measurements)
    assert render(data, bundle="").count("with min_requests_per_slot=2") >= accepted
    assert "min_requests_per_slot=2" not in render(base, bundle="")


def test_headline_takes_the_best_load_of_each_deployment():
    (group,) = headline(report_data.demo())
    assert [(card["deployment"], card["best"]["concurrency"], card["best"]["verdict"]) for card in group["cards"]] == [
        ("plain", 8, "VALID"),
        ("ray-tp2", 8, "SUSPECT"),
    ]
    assert group["cards"][0]["share"] == 1.0
    assert group["cards"][1]["share"] == pytest.approx(391.25 / 809.83, abs=1e-3)
    assert group["lengths"] == [(64, 32)]


def test_shared_prefix_is_shown_with_prompt_length():
    base = report_data.demo()
    options = {"random-prefix-len": 512}
    plans = {
        name: plan.model_copy(update={"points": tuple(at_load(point, client_options=options) for point in plan.points)})
        for name, plan in base.plans.items()
    }
    shared = formatting.plural(512, "token")
    assert shared in render(replace(base, plans=plans)) and shared not in render(base)


def test_headline_never_uses_an_invalid_point():
    base = report_data.demo()
    (group,) = headline(replace(base, measurements=[*base.measurements, report_data.invalid("plain", concurrency=64)]))
    assert group["cards"][0]["best"]["concurrency"] == 8


def test_headline_lists_only_deployments_with_the_workload():
    burst, chat = headline(report_data.troubled())
    assert [card["deployment"] for card in burst["cards"]] == ["plain", "ray-tp2"]
    assert {card["deployment"]: card["best"] is None for card in chat["cards"]}["tp4"]


def test_one_failure_of_many_records_is_one_gap():
    found = gaps(report_data.troubled())
    assert [(gap.deployment, gap.failure.stage, gap.failure.reason, len(gap.points)) for gap in found] == [
        ("plain", "measure", "requests_failed", 1),
        ("tp4", "await_ready", "server_exited", 3),
    ]
    assert found[1].failure == report_data.troubled().startups["tp4"].failure


def test_gap_is_printed_with_reason_quote_remedy_log_and_points(troubled):
    gap = gaps(report_data.troubled())[1]
    failure = gap.failure
    for text in (failure.stage, failure.reason, failure.quote[0], failure.remedy, failure.log, *gap.points):
        assert text.replace("\u00a0", " ") in troubled.words


def test_planned_points_without_record_are_a_gap():
    base = report_data.demo()
    kept = [item for item in base.measurements if item.load != base.measurements[-1].load]
    found = gaps(replace(base, measurements=kept))
    assert [(gap.deployment, gap.failure.reason) for gap in found] == [("plain", "not_measured"), ("ray-tp2", "not_measured")]
    assert found[0].points == [formatting.point(base.measurements[-1].load)]


def test_deployment_that_was_never_planned_is_a_gap():
    base = report_data.demo()
    (gap,) = gaps(replace(base, config={"deployments": {"ghost": {}}}))
    assert (gap.deployment, gap.failure.stage, gap.failure.reason) == ("ghost", "plan_deployment", "not_planned")


def test_failure_to_stop_is_a_gap_without_points():
    base = report_data.demo()
    failure = records.Failure(stage="stop_deployment", reason="would_not_die", detail="Process 4211 is still there.")
    stopped = {"plain": records.Stopped(deployment="plain", failure=failure)}
    (gap,) = gaps(replace(base, stopped=stopped))
    assert (gap.failure.reason, gap.points) == ("would_not_die", [])


def test_accepted_measurement_with_failure_is_gap_without_points():
    base = report_data.demo()
    failure = records.Failure(stage="measure", reason="telemetry_lost", detail="No server metrics.")
    first, *rest = base.measurements
    data = replace(base, measurements=[first.model_copy(update={"failure": failure}), *rest])
    (gap,) = gaps(data)
    assert (gap.failure.reason, gap.points) == ("telemetry_lost", [])


def test_invalid_record_without_any_reason_is_still_a_gap():
    base = report_data.demo()
    (gap,) = gaps(replace(base, measurements=[*base.measurements, report_data.invalid(concurrency=64, reasons=())]))
    assert gap.failure.reason == "no_reason_recorded"


@pytest.mark.parametrize(
    "value",
    [
        "1.08 million", "2.06 MiB", "Qwen3ForCausalLM", "vLLM 0.32.0+cpu, torch 2.13.0+cpu, Ray 2.56.1", "TP 2",
        "AMD EPYC 7763 64-Core Processor", "15.6 GiB", "max-model-len: 512", "VLLM_CPU_KVCACHE_SPACE: '1'", "slow_start",
        "1 leftover process", "2.4 s", "envs/cpu.lock", "163 packages", report_data.digest("tiny"), report_data.digest("cpu"),
        "1f0c2d9a1f0c", "--configfile results/demo/config.json",
    ],
)  # fmt: skip
def test_report_shows(demo, value):
    assert value in demo.words.replace("\u00a0", " ")


def test_rejected_measurements_are_listed_without_results(troubled):
    rows = [row for row in troubled.cells("attempts") if len(row) == 7]
    assert [row[5] for row in rows] == ["17/32", "17/32"]


def test_memory_compares_plan_with_observation(demo):
    by_figure = {row[:2]: row[2:] for row in demo.cells("memory") if len(row) == 5}
    numbers = (formatting.number(524_288), formatting.number(523_264), "0.998")
    assert by_figure["plain", formatting.MEMORY["kv_cache_tokens"]] == tuple(" ".join(text.split()) for text in numbers)
    assert by_figure["ray-tp2", formatting.MEMORY["max_concurrency"]][1] == formatting.NOTHING


def test_gpu_machine_is_described_once_per_kind_of_gpu():
    gpus = tuple(records.Gpu(name="NVIDIA H200", memory_mib=143771) for _ in range(4))
    machine = report_data.hardware(accelerator="cuda", gpus=gpus, driver="580.159.04", cuda="13.0")
    line = views.hardware_line(machine).replace("\u00a0", " ")
    assert line.startswith("4 \u00d7 NVIDIA H200, 140 GiB; 2 logical CPUs")
    part = machine.model_copy(update={"gpus": gpus[:1], "hidden_gpus": 3, "cuda_visible_devices": "2"})
    whole, some = (Document(render(replace(report_data.demo(), hardware=each), bundle="")).words for each in (machine, part))
    assert "580.159.04" in whole and visible_gpus.hiding(part) in some and "CUDA_VISIBLE_DEVICES" not in whole


def test_report_of_run_without_records_is_rendered():
    base = report_data.demo()
    empty = Document(
        render(
            replace(
                base,
                config={},
                environments={},
                checks={},
                manifests={},
                plans={},
                startups={},
                stopped={},
                measurements=(),
                attempts=(),
                distributions=(),
                timelines={},
            )
        )
    )
    sections = {attributes["id"] for tag, attributes in empty.tags if tag == "section"}
    assert {"headline", "comparison", "figures", "verdicts", "gaps", "attempts", "startup", "timeline", "memory", "setup"} <= sections
    assert not any(empty.cells(section) for section in sections - {"reproduce"})
    assert len([1 for tag, attributes in empty.tags if attributes.get("class") == "empty"]) >= 9


@pytest.mark.parametrize(
    ("stopped", "shown"),
    [
        (records.Stopped(deployment="plain", replay=True), "ledger"),
        (
            records.Stopped(deployment="plain", failure=records.Failure(stage="stop_deployment", reason="would_not_die", detail="x")),
            "would_not_die",
        ),
    ],
)
def test_end_of_deployment_is_shown(stopped, shown):
    rows = Document(render(replace(report_data.demo(), stopped={"plain": stopped}), bundle="")).cells("startup")
    assert [shown in row[-1] for row in rows] == [True, False]


def test_commands_that_repeat_a_run_name_its_commit_or_else_its_version():
    base = report_data.demo()
    why = "not a git checkout"
    unknown = replace(base, sources=[records.Sources(servemark="0.1.0", why=why)])
    for data, checkout in ((base, "1f0c2d9a1f0c"), (unknown, f"servemark {base.version}")):
        words = Document(render(data, bundle="")).words
        assert f"config.json in a checkout of {checkout}" in words
        assert (why in words) is (data is unknown)


def test_fullest_engine_is_shown_for_several_engines():
    base = report_data.demo()
    key, timeline = next(iter(base.timelines.items()))
    (server,) = timeline.servers
    several = server.model_copy(update={"engines": 4, "fullest": tuple(1.25 * value / 4 for value in server.running)})
    data = replace(base, timelines={**base.timelines, key: timeline.model_copy(update={"servers": (several,)})})
    without, rows = (Document(render(each, bundle="")).cells("timeline") for each in (base, data))
    assert {len(row) for row in without} == {11} and {len(row) for row in rows} == {12}
    assert [row[11] for row in rows].count("1.25") == 1


def test_zero_throughput_has_no_bar():
    item = report_data.measurement(output_throughput=0.0)
    base = report_data.demo()
    data = replace(base, measurements=[item], plans={}, config={}, startups={})
    assert headline(data)[0]["cards"][0]["share"] is None
    render(data)


def test_undefined_names_in_the_template_are_errors():
    with pytest.raises(jinja2.UndefinedError):
        page._template("report.html.j2").render(title="x", policy="", style="")


def test_template_marks_nothing_safe():
    sources = [page.TEMPLATES / "report.html.j2", *(page.TEMPLATES / "report").glob("*.j2")]
    assert len(sources) == 10
    for source in sources:
        assert not re.search(r"\|\s*safe|autoescape", source.read_text().split("#}", 1)[1]), source
