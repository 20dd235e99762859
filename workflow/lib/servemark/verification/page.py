"""What the report page states of the measurements, against the records: its block of data, made again by the code that makes every page.

The page's cells and plots are made of this block (:mod:`servemark.report.block`). They are not compared: whoever changes them alone
also has to change the manifest, whose sha256 is the archive's identity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from servemark.records import Measurement
from servemark.report import block
from servemark.report.gather import RunRecords, locate
from servemark.verification.differences import Difference, compare

REPORT = "report.html"
_BLOCK = re.compile(rf'<script type="application/json" id="{block.ID}">(.*?)</script>', re.DOTALL)


def compare_page(found: RunRecords, recomputed: Sequence[Measurement]) -> Iterator[Difference | str]:
    """Yield the differences of the block in report.html, and what is wrong with it."""
    path = locate(found.folder, REPORT)
    if path is None:
        yield f"{REPORT} is missing."
        return
    texts = _BLOCK.findall(path.read_text(encoding="utf-8", errors="replace"))
    if len(texts) != 1:
        yield f"{REPORT} holds {len(texts)} blocks of data; it must hold one."
        return
    try:
        parsed = json.loads(texts[0])
        stated, whole = block.expanded(parsed), bool(parsed["whole"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"{REPORT}: its block of data cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return
    expected = block.expanded(block.content(found.page_data(recomputed), whole).block)
    yield from compare(REPORT, stated, expected)
