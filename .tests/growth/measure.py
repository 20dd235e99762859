"""Print how long staging, comparing, collecting and reporting take for large runs, the memory of staging, and the size of the page.

python .tests/growth/measure.py [MEASUREMENTS] [POINTS] [ROWS]

Default: 20,000 measurements, 2,000 points compared, 1,000,000 rows staged. 0 leaves a part out.

CPU seconds of this process: other work on the machine does not change them much. On a busy machine of 2 cores: 1,000,000 rows staged in
62 s with a peak of 153 MiB, which the imports alone take; page of 20,000 measurements in 33 s, 9.4 MB; two
runs of 2,000 points compared in 2.4 s as folders, and in 8 to 9.6 s as archives of 5.1 MB, of which every file has its digest checked.
"""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / ".tests")]

from builders import archived_run, report_data_large  # noqa: E402
from builders.written_run import written  # noqa: E402
from servemark.compare import compared, text  # noqa: E402
from servemark.compare import page as compare_page  # noqa: E402
from servemark.datasets import staging  # noqa: E402
from servemark.progress import Progress  # noqa: E402
from servemark.records import DatasetSource, Measurement, record_files  # noqa: E402
from servemark.report import gather, page, table  # noqa: E402


def timed(what: str, call: Callable[[], Any]) -> Any:
    """Call a function and print its CPU seconds."""
    begin = time.process_time()
    result = call()
    print(f"{time.process_time() - begin:8.1f} s  {what}", flush=True)
    return result


def dataset(rows: int, folder: Path) -> None:
    """Stage a file with rows of about 1 KB. It runs first: the peak of the memory is that of the whole process."""
    source = folder / "prompts.jsonl"
    with source.open("w", encoding="utf-8") as stream:
        for number in range(rows):
            stream.write(
                json.dumps({"prompt": f"Row {number}: " + "words of a prompt " * (20 + number % 71), "output_tokens": 1 + number % 512})
                + "\n"
            )
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MiB peak before", flush=True)
    staged = timed(
        f"stage {rows} rows, {source.stat().st_size / 1e9:.2f} GB",
        lambda: staging.stage(DatasetSource(file=str(source)), folder / "cache", Progress(None, "stage_dataset")),
    )
    assert staged.rows == rows
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MiB peak after staging", flush=True)
    source.unlink()


def comparison(points: int, folder: Path) -> None:
    sides = [written(report_data_large.large(points // 20, 20, 1), folder / side) for side in "ab"]
    found = timed(f"compare two runs of {points} points", lambda: compared.compare(*sides))
    timed("its text and page", lambda: (text.text(found.record), compare_page.render(found)))


def archives(points: int, folder: Path) -> None:
    """Seal two runs with 20 load points of 20 requests on each deployment, one slower than the other, and compare the archives."""
    loads, base, raw_result, calls = 20, archived_run.configuration(), archived_run.raw_result, itertools.count()
    plain = base["deployments"]["plain"]
    names = {f"d{number:04d}": plain | {"options": plain["options"] | {"max-model-len": 512 + number}} for number in range(points // loads)}
    chat = base["workloads"]["chat"] | {"concurrency": list(range(1, loads + 1)), "requests": loads, "repetitions": 1}
    given = base | {"deployments": names, "workloads": {"chat": chat}}

    def sealed(side: str, slow: float) -> Path:
        with (
            patch.object(archived_run, "configuration", lambda: given),
            patch.object(archived_run, "REQUESTS", loads),
            patch.object(archived_run, "BETWEEN_S", 2),
            # Two points with the same results contradict each other.
            patch.object(archived_run, "raw_result", lambda *args: raw_result(*args[:2], slow * (1 + 1e-6 * next(calls)), args[3])),
        ):
            return archived_run.ArchivedRun(folder / side).seal()

    sides = [timed(f"make and seal a run of {points} points", lambda one=one: sealed(*one)) for one in (("a", 0.8), ("b", 0.9))]
    print(f"{sides[0].stat().st_size / 1e6:8.1f} MB archive", flush=True)
    found = timed(f"compare two archives of {points} points", lambda: compared.compare(*sides))
    assert len(found.record.points) == points


def report(measurements: int, folder: Path) -> None:
    data = report_data_large.large(measurements // 20, 10, 2)
    run = written(data, folder / "run")

    def collect() -> None:
        records = [Measurement.read(path) for path in record_files(run, data.plans)]
        frame = table.tidy(records)
        table.write_csv(frame, folder / "measurements.csv")
        table.write_parquet(frame, folder / "measurements.parquet")

    timed(f"collect {measurements} measurements", collect)
    timed("read the run for the page", lambda: gather.read(run).collected())
    html = timed(f"page of {measurements} measurements", lambda: page.render(data))
    print(f"{len(html.encode()) / 1e6:8.1f} MB page")


def main() -> None:
    measurements, points, rows = (int(word) for word in [*sys.argv[1:], *("20000", "2000", "1000000")[len(sys.argv) - 1 :]])
    folder = Path(tempfile.mkdtemp())
    try:
        if rows:
            dataset(rows, folder)
        if points:
            comparison(points, folder)
            archives(points, folder)
        if measurements:
            report(measurements, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
