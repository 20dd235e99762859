"""``servemark show``: the main table of a run, from its archive or its folder, with what it ran on."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.report import formatting, table, views
from servemark.verification import NoSuchFile, absent, contents
from servemark.verification.contents import Contents, locate
from servemark.verification.unpack import unpacked

WIDTH = 100
_LABEL = 12
_GENERATOR = re.compile(r'<meta name="generator" content="servemark ([^"<>]{1,40})">')


def show(path: Path) -> str:
    """Header and table as text of at most ``WIDTH`` columns; figures are as stated, ``verify`` recomputes them.

    Raises:
        NoSuchFile: there is no such file, or the folder is not a run's.
        Unsafe: the archive is damaged or unsafe to unpack.
        ServemarkError: what was found cannot be read.
    """
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise NoSuchFile(
                f"{path} is not the folder of a run: it holds no config.json.",
                do="Give results/RUN, or an archive of a run.",
            )
        return _text(contents.read(path), f"folder {path}")
    if not os.path.isfile(path):
        raise NoSuchFile(f"{path} {absent(path)}.", do="Give a run's folder (results/RUN) or its archive (.tar.zst).")
    with unpacked(path) as archive:
        identity = archive.digests.get(MANIFEST, "unknown: it has no manifest")
        return _text(contents.read(archive.folder), f"archive {path.name}, identity {identity}")


def _text(found: Contents, source: str) -> str:
    if not found.points and found.wrong:
        raise ServemarkError(
            "There is nothing to show: " + formatting.printable(" ".join(found.wrong[:3])),
            do="A run that has only begun has nothing yet. Of an archive, `servemark verify` names everything that is wrong.",
            reason="nothing_to_show",
        )
    lines = [line for label, text in _header(found, source) for line in _wrapped(label, text)]
    lines += ["", table.text_table(table.tidy(found.records, found.accounts.values())).rstrip("\n")]
    if found.missing:
        count = formatting.plural(len(found.missing), "planned point")
        lines.append(f"{_plain(count)} without a record: {_some(found.missing)}")
    lines += [formatting.printable(f"warning: {text}") for text in found.wrong]
    return "\n".join(lines) + "\n"


def _header(found: Contents, source: str) -> Iterator[tuple[str, str]]:
    yield "run", found.run
    yield "from", source
    for check in found.checks.values():
        ray = f", Ray {check.ray}" if check.ray else ""
        yield (
            "software",
            f"vLLM {check.vllm}, torch {check.torch}{ray}, Python {check.python_version} (environment {check.name})",
        )
    if not found.checks:
        # What every node's interpreter said when a deployment was started.
        said = {
            f"vLLM {node.vllm}{f', Ray {node.ray}' if node.ray else ''}, Python {node.python}"
            for startup in found.startups.values()
            for node in startup.nodes
        }
        yield "software", "; ".join(sorted(said)) or "not recorded"
    if version := _version(found.folder):
        yield "made by", f"servemark {version}"
    yield (
        "hardware",
        f"{views.hardware_line(found.hardware)}; {found.hardware.host}" if found.hardware else "not recorded",
    )
    for name, plan in found.plans.items():
        yield "deployment", f"{name}: model {plan.model}, {formatting.topology(plan.topology)}"


def _version(folder: Path) -> str | None:
    page = locate(folder, "report.html")
    if page is None:
        return None
    with page.open(encoding="utf-8", errors="replace") as stream:
        match = _GENERATOR.search(stream.read(4096))
    return match[1] if match else None


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        formatting.printable(_plain(text)),
        WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", ",")


def _some(names: list[str]) -> str:
    shown = ", ".join(formatting.printable(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
