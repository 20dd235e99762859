"""Exports: both formats from a finished run, the second one checked with its published schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from builders import report_data, report_data_cluster
from builders.archived_run import ArchivedRun
from builders.paths import ROOT
from servemark import exports
from servemark.archive import contents
from servemark.config.model import Config
from servemark.report import gather
from servemark.report.gather import RunRecords

SCHEMA = json.loads((ROOT / ".tests/fixtures/llmd/br_v0_2_1_json_schema.json").read_text())


def export(found: RunRecords, name: str) -> dict:
    return {file: json.loads(text) for file, text in exports.files(found, name).items()}


@pytest.fixture
def found(built_run: ArchivedRun) -> RunRecords:
    return gather.read(built_run.folder, strict=True).collected()


def test_only_accepted_measurements_are_exported(found):
    accepted = {(item.deployment, item.load.name) for item in found.measurements if item.verdict != "INVALID"}
    assert 0 < len(accepted) < len(found.measurements)
    rows = export(found, "inferencex")["results.json"]
    assert {(row["servemark"]["deployment"], row["servemark"]["point"]) for row in rows} == accepted
    assert set(export(found, "llmd-br-0.2.1")) == {f"{deployment}/{point}.json" for deployment, point in accepted}


def test_row_of_inferencex_holds_the_figures_per_device_in_seconds(found):
    record = next(item for item in found.measurements if item.deployment == "ray-tp2" and item.verdict != "INVALID")
    rows = export(found, "inferencex")["results.json"]
    row = next(row for row in rows if row["servemark"]["key"] == record.key)
    assert (row["tp"], row["pp"], row["ep"], row["dp_attention"], row["is_multinode"], row["disagg"]) == (2, 1, 1, "false", False, False)
    assert (row["isl"], row["osl"], row["conc"]) == (10, 4, record.load.concurrency)
    assert row["tput_per_gpu"] == pytest.approx(record.total_throughput / 2)
    assert row["output_tput_per_gpu"] == pytest.approx(record.output_throughput / 2)
    assert row["input_tput_per_gpu"] + row["output_tput_per_gpu"] == pytest.approx(row["tput_per_gpu"])
    assert row["mean_ttft"] == pytest.approx(record.ttft_ms.mean / 1000)
    assert row["median_e2el"] == pytest.approx(record.e2el_ms.p50 / 1000)
    assert row["p99_intvty"] == pytest.approx(1000 / record.tpot_ms.p99)
    assert row["precision"] == "bf16" and row["framework"] == "vllm"


def test_loads_that_inferencex_has_no_field_for_have_no_row(found):
    by_rate = [
        item.model_copy(update={"load": item.load.model_copy(update={"concurrency": None, "request_rate": 2.0})})
        for item in found.measurements
    ]
    found.measurements[:] = by_rate
    assert export(found, "inferencex") == {"results.json": []}
    assert len(export(found, "llmd-br-0.2.1")) > 0


@pytest.mark.parametrize("data", [report_data.demo, report_data_cluster.two_nodes], ids=["one machine", "cluster"])
def test_reports_of_llmd_fit_the_published_schema(data):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    reports = export(data(), "llmd-br-0.2.1")
    assert reports
    for name, report in reports.items():
        assert [error.message for error in validator.iter_errors(report)] == [], name


def test_report_of_llmd_has_no_null_for_what_is_not_known(found):
    def nulls(value: object, path: str) -> list[str]:
        if isinstance(value, dict):
            return [one for name, part in value.items() if name != "native" for one in nulls(part, f"{path}.{name}")]
        parts = value if isinstance(value, list) else []
        return [path] if value is None else [one for part in parts for one in nulls(part, path)]

    summary = found.measurements[0].ttft_ms.model_copy(update={"std": None, "p99": None})
    found.measurements[:] = [item.model_copy(update={"ttft_ms": summary}) for item in found.measurements]
    found.checks.clear()
    for name, report in export(found, "llmd-br-0.2.1").items():
        assert nulls(report, name) == []


def test_report_of_llmd_holds_the_figures(found):
    record = next(item for item in found.measurements if item.verdict == "VALID")
    report = export(found, "llmd-br-0.2.1")[f"{record.deployment}/{record.load.name}.json"]
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert aggregate["requests"]["total"] == record.completed + record.failed
    assert aggregate["latency"]["time_to_first_token"]["p95"] == record.ttft_ms.p95
    assert aggregate["latency"]["time_to_first_token"]["units"] == "ms"
    assert aggregate["throughput"]["output_token_rate"]["mean"] == record.output_throughput
    assert report["run"]["uid"] == record.raw_sha256 and report["run"]["keywords"][0] == "VALID"
    assert report["scenario"]["load"]["standardized"]["concurrency"] == record.load.concurrency


def test_same_records_give_the_same_bytes(found):
    for name in exports.FORMATS:
        assert exports.files(found, name) == exports.files(found, name)


def test_configuration_takes_exactly_the_known_formats():
    schema = Config.model_json_schema()["properties"]["exports"]["items"]["enum"]
    assert set(schema) == set(exports.FORMATS)


def test_archive_holds_only_configured_exports(built_run, tmp_path):
    shutil.copytree(built_run.root, tmp_path / "copy")
    run = ArchivedRun.at(tmp_path / "copy")
    for name in exports.FORMATS:
        for file, text in exports.files(gather.read(run.folder).collected(), name).items():
            run.write(f"exports/{name}/{file}", text)
    assert not any(name.startswith("exports/") for name in contents.archived_files(run.folder, Path("envs")))
    run.edit_json("config.json", lambda data: data.update(exports=["inferencex"]))
    archived = contents.archived_files(run.folder, Path("envs"))
    assert [name for name in archived if name.startswith("exports/")] == ["exports/inferencex/results.json"]
