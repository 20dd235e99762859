"""Archives and folders of runs to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import archived_run
from builders.compared_runs import archived
from builders.written_run import written
from servemark.report.gather import RunRecords


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> archived_run.ArchivedRun:
    return archived(tmp_path_factory.mktemp("archived"))


@pytest.fixture(scope="session")
def slower_archive(tmp_path_factory) -> archived_run.ArchivedRun:
    return archived(tmp_path_factory.mktemp("slower"), 1.2)


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a run's folder."""
    made: list[Path] = []

    def write(data: RunRecords) -> Path:
        made.append(written(data, tmp_path / f"run-{len(made)}"))
        return made[-1]

    return write
