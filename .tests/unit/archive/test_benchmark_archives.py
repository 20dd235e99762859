"""The files behind the rows of docs/benchmarks: each archive verifies, and ratios and times in the documents follow from them."""

import csv
import hashlib
import json
import re
from dataclasses import replace
from itertools import groupby

import pytest
import yaml

from builders.paths import ROOT
from builders.published import ARCHIVES as FOLDER
from builders.published import PAGE, START_UP_PAGE, archive, listed, ratio_rows, rows
from servemark.compare.compared import compare
from servemark.records import Measurement, Search, Startup
from servemark.report import gather
from servemark.verification import searches, verify

ARCHIVES = sorted(FOLDER.glob("*.tar.zst"))
PROFILE_PAGE = (ROOT / "docs/explanation/planning.md").read_text(encoding="utf-8")
MOST_BYTES = 2_000_000


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_archive_is_verified_and_named_on_the_page(path):
    found = verify(path)
    assert found.wrong == () and path.stat().st_size < MOST_BYTES
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (row,) = [line for line in PAGE.splitlines() if f"`{digest}`" in line]
    assert f"docs/benchmarks/archives/{path.name}" in row and f"{found.figures} results" in row


def test_each_archive_named_on_the_page_exists():
    named = set(re.findall(r"[\w.-]+\.tar\.zst", PAGE))
    assert named == {path.name for path in ARCHIVES}


def test_each_result_row_names_an_archive_of_the_page():
    listed = set(re.findall(r"^\| `([\w-]+)` \| `[0-9a-f]{64}`", PAGE, re.MULTILINE))
    tables = re.findall(r"^\|.*\| archive \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    named = [re.search(r"\| `([\w-]+)` \|$", row) for row in rows]
    assert len(rows) >= 7 and [row for row, name in zip(rows, named, strict=True) if not name or name[1] not in listed] == []


def test_comparison_gives_the_ratios_of_the_page():
    a, b = (archive(f"two-gpus-{name}") for name in ("tp2", "engines"))
    (point,) = compare(a, b).record.points
    found = {one.metric: one for one in point.metrics}
    assert (point.repetitions_a, point.repetitions_b, point.suspect_a, point.suspect_b) == (3, 3, True, True)
    for metric, ratio, low, high in (
        ("total_throughput", 1.01, 0.89, 1.25),
        ("mean_ttft", 0.86, 0.77, 0.99),
        ("p95_ttft", 0.81, 0.75, 0.88),
    ):
        one = found[metric]
        assert (round(one.ratio, 2), round(one.low, 2), round(one.high, 2)) == (ratio, low, high), metric
        assert f"| {ratio} | {low} to {high} |" in PAGE


@pytest.mark.parametrize("name", ["humming", "marlin", "cut"])
def test_one_changed_option_gives_the_ratio_of_its_row_and_is_no_result(name):
    a, b = (archive(f"two-gpus-engines{suffix}") for suffix in ("", f"-{name}"))
    (point,) = compare(a, b).record.points
    (found,) = [one for one in point.metrics if one.metric == "total_throughput"]
    assert found.verdict == "cannot tell" and f"| {found.b:,.0f} | {found.ratio:.2f} |" in PAGE


@pytest.mark.parametrize(("name", "file"), [("one-gpu-quick-humming", "one-gpu"), ("one-gpu-search", "one-gpu-search")])
def test_file_of_one_gpu_asks_for_what_its_archive_measured(unpack, name, file):
    ran = json.loads((unpack(name) / "config.json").read_text())
    asked = yaml.safe_load((ROOT / f"docs/benchmarks/{file}.yaml").read_text())
    for part in ("options", "variables"):
        assert ran["deployments"]["quick-humming"][part] == asked["deployments"]["quick-humming"][part]
    load, given = ran["workloads"]["chat"], asked["workloads"]["chat"]
    same = given.keys() - {"duration", "requests"}
    assert {key: load[key] for key in same} == {key: given[key] for key in same}
    assert load["requests"] == (given["requests"] if isinstance(given["requests"], list) else [given["requests"]])
    assert {name: {k: v for k, v in limits.items() if v is not None} for name, limits in ran["slo"].items() if limits} == asked["slo"]
    assert ran["restarts"] == asked.get("restarts", 0)


def test_start_up_times_of_one_gpu_follow_from_the_archive(unpack):
    folder = unpack("one-gpu-quick-humming")
    for words, start in (("first", "quick-humming"), ("second", "quick-humming+1")):
        found = Startup.read(folder / f"deployments/{start}/startup.json")
        seconds = {phase.name: phase.seconds for phase in found.phases}
        shown = [seconds[name] for name in ("imports and config", "weights", "compile", "first run of the model")]
        total = found.seconds_to_first_token
        cells = " | ".join(f"{value:.1f} s" for value in (total, *shown, total - sum(shown)))
        assert f"| {words} | {cells} |" in PAGE
        (row,) = [line for line in START_UP_PAGE.splitlines() if line.startswith(f"| {words} start, `quick-humming`")]
        numbers = [float(cell) for cell in row.split("|")[2:-1]]
        every = [value for name, value in seconds.items() if name != "kernel build"]
        assert seconds["kernel build"] == 0 and numbers == pytest.approx([*every, total], abs=0.051)


def test_results_of_one_gpu_follow_from_the_archives(unpack):
    folder = unpack("one-gpu-search")
    search = Search.read(folder / "deployments/quick-humming/searches/chat/search.json")
    assert (search.meets, search.misses) == (32, 91) and len(search.trials) == 7
    for load, group in groupby(sorted(rows(folder), key=lambda row: int(row["concurrency"])), lambda row: row["concurrency"]):
        assert f"| {' | '.join(search_cells(load, list(group)))} |" in PAGE
    for words, row in zip(("first", "second"), rows(unpack("one-gpu-quick-humming")), strict=True):
        ttft, tpot, total = (float(row[f"steady_{name}"]) for name in ("ttft_p95_ms", "tpot_p95_ms", "total_tokens_per_s"))
        energy = float(row["gpu_energy_j_per_output_token"])
        assert f"| {words} | {total:,.0f} | {ttft / 1000:.2f} s | {tpot:.1f} ms | {energy:.3f} J |" in PAGE


@pytest.mark.parametrize(("name", "deployment", "shown"), [("engines", "engines", "engines"), ("tp2", "tp2-recipe", "TP2")])
def test_search_on_two_gpus_follows_from_its_archive(unpack, name, deployment, shown):
    folder = unpack(f"two-gpus-search-{name}")
    search = Search.read(folder / f"deployments/{deployment}/searches/chat/search.json")
    assert (search.meets, search.misses) == ((91, 256) if name == "engines" else (None, None)) and len(search.trials) == 6
    for load, group in groupby(sorted(rows(folder), key=lambda row: int(row["concurrency"])), lambda row: row["concurrency"]):
        assert f"| {shown} | {' | '.join(search_cells(load, list(group)))} |" in PAGE
    ran = json.loads((folder / "config.json").read_text())["deployments"][deployment]
    asked = yaml.safe_load((ROOT / "docs/benchmarks/two-gpus-search.yaml").read_text())["deployments"][deployment]
    assert (ran["options"], ran["variables"]) == (asked["options"], asked["variables"])
    assert f"{Startup.read(folder / f'deployments/{deployment}/startup.json').seconds_to_first_token:.1f} s" in PAGE


def test_comparison_of_the_searches_gives_the_ratios_of_the_page():
    a, b = (archive(f"two-gpus-search-{name}") for name in ("tp2", "engines"))
    (point,) = [point for point in compare(a, b).record.points if point.load.endswith("c=256")]
    found = {one.metric: one for one in point.metrics}
    assert (found["total_throughput"].verdict, f"{found['total_throughput'].ratio:.2f}") == ("better", "1.29")
    assert [row for row in ratio_rows(found) if row not in PAGE] == []


def test_waiting_samples_of_tp2_follow_from_its_archive(unpack):
    points = unpack("two-gpus-search-tp2") / "deployments/tp2-recipe/points"
    waited = {}
    for load in (32, 256):
        for number in (1, 2, 3):
            (node,) = Measurement.read(points / f"chat-c{load}-r{number}.json").telemetry.nodes
            gpu = min(node.gpus, key=lambda gpu: gpu.idle_samples)
            waited[load, number] = f"{gpu.idle_samples} of {gpu.samples}"
    assert [waited[32, number].split()[0] for number in (2, 3)] == ["0", "0"]
    assert f"{waited[32, 1]} samples" in PAGE and f"{waited[256, 1]}, {waited[256, 2]} and {waited[256, 3]} samples" in PAGE


def test_search_is_repeated_by_the_rule_of_the_archive_format(unpack):
    found = gather.read(unpack("two-gpus-search-tp2"))
    assert found.archive_format == 5 and list(searches.check(found)) == []
    assert any("trial 3" in str(one) for one in searches.check(replace(found, archive_format=6)))
    (one,) = found.searches["tp2-recipe"]
    found.searches["tp2-recipe"] = [one.model_copy(update={"meets": 32.0})]
    assert list(searches.check(found)) != [] and list(searches.check(replace(found, archive_format=4))) == []


def test_archive_of_format_5_keeps_the_verdicts_of_its_own_rule(unpack):
    # Its second and third trial at 32 are SUSPECT only because of the first one.
    found = gather.read(unpack("two-gpus-search-tp2"))
    assert found.archive_format == 5
    alone = {item.load.name: item.verdict for item in found.measurements}
    for archive_format, verdict in ((5, "SUSPECT"), (None, "VALID")):
        judged = {item.load.name: item.verdict for item in replace(found, archive_format=archive_format).collected().measurements}
        assert (alone["chat-c32-r2"], judged["chat-c32-r2"], judged["chat-c32-r1"]) == ("VALID", verdict, "SUSPECT")


def search_cells(load, trials):
    """Return the cells of a table of a search, from the load to the energy."""
    return [
        load,
        str(len(trials)),
        listed(f"{float(row['steady_ttft_p95_ms']) / 1000:.2f}" for row in trials) + " s",
        listed(f"{float(row['steady_tpot_p95_ms']):.1f}" for row in trials) + " ms",
        listed(f"{float(row['steady_total_tokens_per_s']):,.0f}" for row in trials),
        listed(f"{float(row['gpu_energy_j_per_output_token']):.3f}" for row in trials) + " J",
    ]


def test_time_of_a_decode_step_is_the_sum_of_its_kernels():
    parts = {"experts": "matmul_ogs", "attention": "(?i)flash::", "dense": "nvjet|cublas", "all-reduce": "cross_device", "gather": "nccl"}
    found = dict.fromkeys(parts, 0.0)
    with (ROOT / "docs/benchmarks/tp2-decode-steps.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["rank"] == "rank 0":
                part = next((part for part, pattern in parts.items() if re.search(pattern, row["kernel"])), None)
                if part:
                    found[part] += float(row["us"]) / 40_000
    assert [round(value, 1) for value in found.values()] == [19.4, 5.9, 1.5, 1.4, 0.4]
    assert "| 19.4 ms | 5.9 ms | 1.5 ms | 1.4 ms | 0.5 ms | 0.4 ms | 1.0 ms |" in PROFILE_PAGE
