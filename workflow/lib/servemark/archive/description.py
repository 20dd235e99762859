"""What an archive says of itself: a run record (``run.json``) and RO-Crate metadata (``ro-crate-metadata.json``).

Both are made while the archive is sealed, from the run's records alone: neither the clock, nor the host, nor the user of
that moment has a part in them, so the same results give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from servemark.archive.crate import CRATE, crate
from servemark.archive.run_record import RUN_RECORD, compile_run
from servemark.archive.seal import MANIFEST, Digest, manifest_size

__all__ = ["CRATE", "RUN_RECORD", "compile_run", "crate", "describe"]


def describe(folder: Path, digests: Mapping[str, Digest]) -> dict[str, bytes]:
    """The run record and the crate's metadata, as text in UTF-8.

    Args:
        folder: the run's.
        digests: every other file of the archive but the manifest.

    Raises:
        ServemarkError: a record is missing or cannot be read.
    """
    run = compile_run(folder, digests)
    record = run.to_json().encode()
    names = (*digests, RUN_RECORD, CRATE)
    sizes = {name: digest.size for name, digest in digests.items()}
    sizes |= {RUN_RECORD: len(record), MANIFEST: manifest_size(names)}
    text = json.dumps(crate(run, sizes), indent=1, ensure_ascii=False) + "\n"
    return {RUN_RECORD: record, CRATE: text.encode()}
