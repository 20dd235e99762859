"""The tidy table, its files and its terminal form."""

from __future__ import annotations

import csv
import random

import pandas as pd
import pyarrow.parquet
import pytest

from builders import report_data, report_data_cluster
from servemark.measurement.thresholds import Verdict
from servemark.records import EngineCounters, ServerCounters, Topology
from servemark.report import table, views


def frame(*measurements):
    return table.tidy(measurements)


def test_rows_are_sorted_for_any_input_order():
    measurements = report_data.troubled().measurements
    shuffled = list(measurements)
    random.Random(7).shuffle(shuffled)
    result = table.tidy(shuffled)
    assert len(result) == len(measurements)
    pd.testing.assert_frame_equal(result, table.tidy(measurements))
    plain = result[result["deployment"] == "plain"]
    assert plain["workload"].tolist() == ["burst"] * 3 + ["chat"] * 7
    assert plain["request_rate_per_s"].dropna().tolist() == [2.0, 4.0, 8.0]
    assert plain["concurrency"].dropna().tolist() == [1, 1, 4, 4, 8, 8, 16]
    assert plain["repetition"].tolist()[3:] == [1, 2, 1, 2, 1, 2, 1]


def test_empty_table_has_columns_and_types():
    for result in (table.tidy([]), frame(report_data.measurement())):
        assert {name: str(kind) for name, kind in result.dtypes.items()} == table.SCHEMA


def test_row_has_results_of_record():
    item = report_data.measurement()
    (row,) = table.rows(frame(item))
    assert row["output_tokens_per_s"] == item.output_throughput
    assert row["requests_per_s"] == item.request_throughput
    assert row["total_tokens_per_s"] == item.total_throughput
    assert row["ttft_p99_ms"] == item.ttft_ms.p99
    assert row["e2el_max_ms"] == item.e2el_ms.max
    assert row["itl_count"] == 992


def test_row_has_topology_client_replicas_and_job():
    data = report_data_cluster.two_nodes()
    four, one = (next(item for item in data.measurements if item.deployment == name) for name in ("tp2-x4", "plain"))
    by_name = {row["deployment"]: row for row in table.rows(table.tidy([four, one], data.accounts.values()))}
    assert {
        name: by_name["tp2-x4"][name]
        for name in (*Topology.model_fields, "devices", "client_node", "job_id", "replica_requests")
        if name != "devices_per_node"
    } == {
        "nodes": 2,
        "devices": 8,
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "data_parallel": 1,
        "replicas": 4,
        "balancing": "server",
        "routing": "round_robin",
        "executor": "mp",
        "client": "own",
        "client_node": "client1",
        "job_id": "48212",
        "replica_requests": "r0=10 r1=9 r2=9 r3=8",
    }
    assert {name: by_name["plain"][name] for name in ("replicas", "routing", "replica_requests")} == {
        "replicas": 1,
        "routing": None,
        "replica_requests": None,
    }


def test_job_is_the_one_of_the_attempt_that_measured():
    item = report_data.measurement("x", attempt="results/r/deployments/x/attempts/002")
    jobs = [
        report_data_cluster.job("x", "11", attempts=("results/r/deployments/x/attempts/001",)),
        report_data_cluster.job("x", "12", attempts=("results/r/deployments/x/attempts/002",)),
    ]
    (row,) = table.rows(table.tidy([item], [report_data_cluster.accounting("x", *jobs, used=0.0)]))
    assert row["job_id"] == "12"
    (row,) = table.rows(table.tidy([item.model_copy(update={"key_parts": {}})]))
    assert (row["job_id"], row["devices"], row["executor"]) == (None, None, None)


def test_measurement_of_other_machine_has_no_job_of_this_one():
    place = "results/r/deployments/x/attempts/001"
    items = [report_data.measurement("x", attempt=place, attempt_id=name, concurrency=load) for load, name in ((1, "here"), (2, "there"))]
    job = report_data_cluster.job("x", "11", attempts=(place,), attempt_ids=("here",))
    rows = table.rows(table.tidy(items, [report_data_cluster.accounting("x", job, used=0.0)]))
    assert [(row["concurrency"], row["job_id"]) for row in rows] == [(1, "11"), (2, None)]
    older = job.model_copy(update={"attempt_ids": ()})
    rows = table.rows(table.tidy(items, [report_data_cluster.accounting("x", older, used=0.0)]))
    assert [row["job_id"] for row in rows] == ["11", "11"], "the folder alone identifies an attempt of an older version"


def test_invalid_row_has_no_results_of_its_record():
    (row,) = table.rows(frame(report_data.invalid()))
    assert {name: row[name] for name in (*table.FIGURES, "duration_s", "total_output_tokens", "ttft_count")} == dict.fromkeys(
        (*table.FIGURES, "duration_s", "total_output_tokens", "ttft_count")
    )
    assert (row["verdict"], row["reasons"], row["requests_completed"]) == ("INVALID", "requests_failed", 17)


def test_row_has_clients_target_and_cpu():
    item = report_data.measurement(clients=3, ask="replica", client_cpu=0.41)
    broken = report_data.invalid(concurrency=8).model_copy(update={"client_cpu": 0.97})
    shown = [[row[name] for name in ("clients", "ask", "client_cpu_cores")] for row in table.rows(frame(item, broken))]
    assert sorted(shown) == [[1, "endpoint", None], [3, "replica", 0.41]]


def test_missing_latency_stays_empty():
    (row,) = table.rows(frame(report_data.measurement(itl_ms=None)))
    assert row["itl_p50_ms"] is None
    assert row["tpot_p50_ms"] == 8.1


def test_aggregate_uses_only_accepted_repetitions():
    items = [report_data.measurement(repetition=n, output=value) for n, value in ((1, 100.0), (2, 140.0), (3, 110.0))]
    items[1] = items[1].model_copy(update={"verdict": "SUSPECT"})
    result = table.aggregate(frame(*items, report_data.invalid(concurrency=8, repetition=4), report_data.invalid("zero")))
    first, zero = table.rows(result)
    assert (first["repetitions_asked"], first["repetitions_accepted"], first["repetitions_suspect"]) == (4, 3, 1)
    assert [first[f"output_tokens_per_s_{name}"] for name in ("median", "min", "max")] == [110.0, 100.0, 140.0]
    assert (zero["repetitions_asked"], zero["repetitions_accepted"]) == (1, 0)
    assert zero["output_tokens_per_s_median"] is None


def test_aggregate_keeps_concurrency_and_rate_apart():
    items = [
        report_data.measurement(concurrency=8),
        report_data.measurement(concurrency=8, request_rate=2.0),
        report_data.measurement(concurrency=None, request_rate=2.0),
    ]
    result = table.aggregate(frame(*items))
    assert result["repetitions_asked"].tolist() == [1, 1, 1]


def test_aggregate_of_nothing_is_empty():
    assert table.aggregate(table.tidy([])).empty


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_text_cannot_start_a_formula(tmp_path, start):
    path = tmp_path / "deep" / "table.csv"
    table.write_csv(frame(report_data.measurement(workload=start, seed=-5)), path)
    with path.open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["workload"] == f"'{start}".replace("\r", "\n")
    assert row["seed"] == "-5", "numbers are unchanged"


def test_csv_gives_the_same_floats_back(tmp_path):
    original = frame(report_data.measurement(output=0.1 + 0.2, ttft=1 / 3), report_data.invalid("other"))
    table.write_csv(original, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as stream:
        first, second = sorted(csv.DictReader(stream), key=lambda row: row["verdict"], reverse=True)
    assert float(first["output_tokens_per_s"]) == 0.1 + 0.2
    assert float(first["ttft_p50_ms"]) == 1 / 3
    assert second["output_tokens_per_s"] == ""
    assert list(first) == list(table.SCHEMA)


def test_parquet_round_trip_keeps_types(tmp_path):
    original = table.tidy(report_data.troubled().measurements)
    path = tmp_path / "deep" / "table.parquet"
    table.write_parquet(original, path)
    schema = pyarrow.parquet.read_schema(path)
    assert schema.names == list(table.SCHEMA)
    assert str(schema.field("concurrency").type) == "int64"
    assert str(schema.field("ttft_p50_ms").type) == "double"
    assert str(schema.field("deployment").type) in ("string", "large_string")
    pd.testing.assert_frame_equal(pd.read_parquet(path), original, check_dtype=False)


def test_text_table_fits_100_columns_and_marks_suspect():
    text = table.text_table(table.tidy(report_data.troubled().measurements))
    assert max(map(len, text.splitlines())) <= 100
    (suspect,) = (line for line in text.splitlines() if line.startswith("ray-tp2") and "?" in line)
    assert suspect.count("?") == 7
    assert "398?" in suspect
    note, reasons = text.splitlines()[-2:]
    assert note.startswith("? = SUSPECT") and reasons.endswith("clock 1, slow_start 1")


def test_text_table_shows_reason_of_invalid_row():
    text = table.text_table(frame(report_data.invalid(concurrency=16), report_data.invalid("bare", reasons=())))
    assert "INVALID: requests_failed" in text
    assert "INVALID: no reason recorded" in text
    assert "98" not in text
    assert "SUSPECT" not in text


def test_text_table_aligns_its_columns():
    text = table.text_table(frame(*report_data.sweep()[:6]))
    lines = text.splitlines()[:-2]
    ends = {line.rindex(" ") for line in lines[1:]}
    assert len({len(line) for line in lines}) == 1
    assert len(ends) == 1


@pytest.mark.parametrize(("concurrency", "rate", "shown"), [(512, 12.5, "c=512 12.5/s"), (None, None, "all"), (None, 2.0, "2/s")])
def test_text_table_names_the_load(concurrency, rate, shown):
    text = table.text_table(frame(report_data.measurement(concurrency=concurrency, request_rate=rate)))
    assert f" {shown} " in text


def test_text_table_has_no_control_characters():
    text = table.text_table(frame(report_data.measurement("a\x1b[2Jb\u202e")))
    assert "a?[2Jb?" in text
    assert text.isprintable() or set(filter(lambda char: not char.isprintable(), text)) == {"\n"}


def test_looser_thresholds_are_stated_below_the_table():
    loose = Verdict(min_requests_per_slot=2.0, max_client_cpu=0.5).model_dump()
    items = [item.model_copy(update={"thresholds": loose}) for item in report_data.troubled().measurements]
    table_ = frame(*items)
    assert set(table_["thresholds"]) == {"min_requests_per_slot=2 max_client_cpu=0.5"}
    assert "min_requests_per_slot=2\n" in table.text_table(table_) and "max_client_cpu" not in table.text_table(table_)
    strict = [item.model_copy(update={"thresholds": Verdict().model_dump()}) for item in items]
    assert "thresholds" not in table.text_table(frame(*strict)) and views.loosened(strict) == ""
    assert views.loosened(items) == "min_requests_per_slot=2"


def test_counters_of_engines_are_columns():
    engine = EngineCounters(
        replica="r0", engine="0", finished=4, generated=8, preemptions=3, prefix_queries=100, prefix_hits=25, drafts=10, accepted_tokens=5
    )
    item = report_data.troubled().measurements[0].model_copy(update={"counters": ServerCounters(engines=(engine,))})
    (row,) = table.rows(frame(item))
    assert (row["prefix_hit_share"], row["preemptions"], row["acceptance_length"]) == (0.25, 3, 1.5)
