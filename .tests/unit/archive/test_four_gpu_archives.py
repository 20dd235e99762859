"""Four H200: the page, the plan's sentence and the examples state what the two archives contain."""

import json
from statistics import median

import pytest
import yaml

from builders.paths import ROOT
from builders.published import PAGE, START_UP_PAGE, archive, listed, ratio_rows, rows
from servemark.compare.compared import compare
from servemark.planning.advice_data import NUMBERS
from servemark.records import Startup
from servemark.report import comparison, gather, table, terminal, views


def test_table_of_four_gpus_follows_from_its_archives(unpack):
    for name, deployment, shown in (("tp4", "tp4-recipe", "TP4"), ("engines-512", "engines", "4 engines")):
        folder = unpack(f"four-gpus-{name}")
        found = rows(folder)
        totals = listed(f"{float(row['total_tokens_per_s']):,.0f}" for row in found)
        ttft, p95, tpot, energy = (
            median(float(row[column]) for row in found)
            for column in ("ttft_mean_ms", "ttft_p95_ms", "tpot_p95_ms", "gpu_energy_j_per_output_token")
        )
        start = Startup.read(folder / f"deployments/{deployment}/startup.json")
        cells = (
            f"{totals} | {ttft / 1000:.2f} s | {p95 / 1000:.2f} s | {tpot:.1f} ms | {energy:.3f} J | {start.seconds_to_first_token:.1f} s"
        )
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {shown}, ") and line.endswith(f"`four-gpus-{name}` |")]
        assert cells in row
        (row,) = [line for line in START_UP_PAGE.splitlines() if line.startswith(f"| `{deployment}`: ")]
        phases = [phase.seconds for phase in start.phases if phase.name != "kernel build"]
        assert [float(cell) for cell in row.split("|")[2:-1]] == pytest.approx([*phases, start.seconds_to_first_token], abs=0.051)
        ran = json.loads((folder / "config.json").read_text())
        asked = yaml.safe_load((ROOT / "docs/benchmarks/four-gpus.yaml").read_text())
        for part in ("options", "variables"):
            assert ran["deployments"][deployment][part] == asked["deployments"][deployment][part]
        load = asked["workloads"]["chat"]
        assert {key: ran["workloads"]["chat"][key] for key in load} == load


def test_verdicts_and_steady_states_of_four_gpus_are_those_of_the_page(unpack):
    tp4, engines = (rows(unpack(f"four-gpus-{name}")) for name in ("tp4", "engines-512"))
    assert [row["reasons"] for row in tp4] == ["stalled gpus_waited", "", "stalled gpus_waited"]
    assert [row["reasons"] for row in engines] == ["", "requests_overtaken", ""]
    assert [row["slo_met"] for row in (*tp4, *engines)] == ["no", "no", "no", "no", "yes", "yes"]
    assert [bool(row["steady_total_tokens_per_s"]) for row in tp4] == [False, False, True]
    shown = {column: [float(row[column]) for row in engines] for column in ("steady_ttft_p95_ms", "steady_tpot_p95_ms")}
    words = " ".join(PAGE.split())
    ttft, tpot = (float(tp4[2][f"steady_{name}_p95_ms"]) for name in ("ttft", "tpot"))
    assert f"a stop of 4.24 s: p95 of TTFT {ttft / 1000:.2f} s, p95 of TPOT {tpot:.1f} ms" in words
    for values in (
        [f"{value / 1000:.2f}" for value in shown["steady_ttft_p95_ms"]],
        [f"{value:.1f}" for value in shown["steady_tpot_p95_ms"]],
        [f"{float(row['steady_total_tokens_per_s']):,.0f}" for row in engines],
    ):
        assert "{}, {} and {}".format(*values) in words


def test_summary_counts_the_reasons_of_suspect_repetitions(unpack):
    shown = terminal.results(gather.read(unpack("four-gpus-tp4")).collected())
    assert "stalled 2, gpus_waited 2" in shown and max(map(len, shown.splitlines())) <= table.WIDTH


def test_comparison_of_four_gpus_is_that_of_page_and_plan():
    (point,) = compare(archive("four-gpus-tp4"), archive("four-gpus-engines-512")).record.points
    found = {one.metric: one for one in point.metrics}
    assert (found["total_throughput"].verdict, f"{found['total_throughput'].ratio:.2f}") == ("better", "1.32")
    assert [row for row in ratio_rows(found) if row not in PAGE] == []
    total, ttft = found["total_throughput"], found["mean_ttft"]
    for name, value, digits in (
        ("tp4_rate", total.a, 0),
        ("engines_rate", total.b, 0),
        ("engines_ratio", total.ratio, 2),
        ("engines_ratio_low", total.low, 2),
        ("engines_ratio_high", total.high, 2),
        ("tp4_ttft", ttft.a / 1000, 2),
        ("engines_ttft", ttft.b / 1000, 2),
    ):
        assert NUMBERS[name].value == round(value, digits), name
    example = (ROOT / "config/examples/gpt-oss-120b.yaml").read_text(encoding="utf-8")
    assert all(f"{NUMBERS[name].value:,.0f} tokens/s" in example for name in ("tp4_rate", "engines_rate"))


def test_rates_of_one_and_two_gpus_in_the_plan_follow_from_their_archives(unpack):
    for number, name in (("tp2_rate", "two-gpus-search-tp2"), ("one_gpu_rate", "one-gpu-search")):
        found = [float(row["steady_total_tokens_per_s"]) for row in rows(unpack(name)) if row["concurrency"] == "256"]
        assert NUMBERS[number].value == round(median(found)) and name in NUMBERS[number].source


def test_roofline_share_of_the_plan_lies_within_those_of_the_archives(unpack):
    shares = {}
    for name in ("four-gpus-tp4", "four-gpus-engines-512", "two-gpus-tp2", "two-gpus-engines-humming", "two-gpus-engines-marlin"):
        data = gather.read(unpack(name)).collected()
        frame = table.tidy(data.measurements, data.accounts.values(), data.attainments)
        ((share,), unknown) = comparison.shares(views.medians(table.aggregate(frame)), data)
        assert unknown == []
        shares[name] = round(100 * share.part)
    assert list(shares.values()) == [18, 26, 26, 28, 23]
    assert min(shares.values()) <= 100 * NUMBERS["roofline_share"].value <= max(shares.values())
