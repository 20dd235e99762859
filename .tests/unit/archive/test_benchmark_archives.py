"""The archives behind the rows of docs/benchmarks: each verifies, and two of them give the ratio that the page states."""

import pytest

from builders.paths import ROOT
from servemark.compare.compared import compare
from servemark.verification import verify

ARCHIVES = sorted((ROOT / "docs/benchmarks/archives").glob("*.tar.zst"))
PAGE = (ROOT / "docs/benchmarks/index.md").read_text(encoding="utf-8")
MOST_BYTES = 2_000_000


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_archive_is_verified_and_named_on_the_page(archive):
    found = verify(archive)
    assert found.wrong == () and found.measurements == 3 and found.figures == 144
    assert archive.stat().st_size < MOST_BYTES
    assert f"docs/benchmarks/archives/{archive.name}" in PAGE


def test_comparison_gives_the_ratios_of_the_page():
    a, b = (ROOT / f"docs/benchmarks/archives/two-gpus-{name}.tar.zst" for name in ("tp2", "engines"))
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
        assert f"{ratio} x" in PAGE
