"""Print the main table of a run with its software and hardware (``servemark show``)."""

import os
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.measurement.thresholds import stored
from servemark.report import formatting, gather, table, terminal, views
from servemark.report.gather import RunRecords
from servemark.verification.unpack import NoSuchFile, unpacked

WIDTH = 100
_LABEL = 12


def show(path: Path) -> str:
    """Return header and table as text of at most ``WIDTH`` columns, with links for a folder. The records' results are not recomputed.

    Raises:
        NoSuchFile: ``path`` is neither a regular file nor the folder of a run.
        Unsafe: the archive is damaged or unsafe to unpack.
        ServemarkError: no record can be read.
    """
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise NoSuchFile(f"{path} is not the folder of a run: it contains no config.json.", do="Pass results/RUN or its archive.")
        opened = table.links(path)
        return _text(gather.read(path), f"folder {path}") + "".join(f"{line}\n" for line in ["", *opened] if opened)
    with unpacked(path) as archive:
        identity = archive.digests.get(MANIFEST, "unknown (no manifest)")
        return _text(gather.read(archive.folder), f"archive {path.name}, identity {identity}")


def _text(found: RunRecords, source: str) -> str:
    wrong = [error.what.replace(f"{found.folder}/", "") for error in found.wrong]
    if not found.points and wrong:
        raise ServemarkError(
            "There is nothing to show: " + formatting.printable(" ".join(wrong[:3])),
            do="If the run has just begun, wait for its first measurement. For an archive, run `servemark verify`.",
            reason="nothing_to_show",
        )
    found = _with_thresholds(found).collected()
    lines = [line for label, text in _header(found, source) for line in _wrapped(label, text)]
    lines += ["", terminal.results(found).rstrip("\n")]
    if found.missing:
        names = ", ".join(formatting.printable(name) for name in found.missing[:3])
        names += f" and {len(found.missing) - 3} more" if len(found.missing) > 3 else ""
        lines.append(f"{_plain(formatting.plural(len(found.missing), 'planned point'))} without a record: {names}")
    return "\n".join([*lines, *(formatting.printable(f"warning: {text}") for text in wrong)]) + "\n"


def _with_thresholds(found: RunRecords) -> RunRecords:
    """Return the run with the thresholds of its configuration in records that state none, from before archive format 3."""
    try:
        values = {name: float(value) for name, value in stored(found.config.get("verdict", {})).model_dump().items()}
    except (ValueError, AttributeError, OverflowError):
        return found  # `servemark verify` reports it
    items = [item if item.thresholds else item.model_copy(update={"thresholds": values}) for item in found.measurements]
    return replace(found, measurements=items)


def _header(found: RunRecords, source: str) -> Iterator[tuple[str, str]]:
    yield "run", found.run
    yield "from", source
    for check in found.checks.values():
        ray = f", Ray {check.ray}" if check.ray else ""
        yield "software", f"vLLM {check.vllm}, torch {check.torch}{ray}, Python {check.python_version} (environment {check.name})"
    if not found.checks:
        yield "software", "not recorded"
    if found.sources:
        yield "made by", "; ".join(dict.fromkeys(f"servemark {state.servemark}" for state in found.sources))
    yield "hardware", f"{views.hardware_line(found.hardware)}; {found.hardware.host}" if found.hardware else "not recorded"
    for name, plan in found.plans.items():
        if name in found.configured:
            starts = f", {len(found.configured[name])} starts" if len(found.configured[name]) > 1 else ""
            yield "deployment", f"{name}: model {plan.model}, {formatting.topology(plan.topology)}{starts}"


def _wrapped(label: str, text: str) -> list[str]:
    label = f"{label:<{_LABEL}}"
    words = formatting.printable(_plain(text))
    return textwrap.wrap(words, WIDTH, initial_indent=label, subsequent_indent=" " * _LABEL, break_on_hyphens=False)


def _plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", ",")
