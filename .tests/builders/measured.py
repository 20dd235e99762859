"""A measurement for a ledger."""

from __future__ import annotations

import hashlib

from builders.loads import load, split
from servemark.records import Measurement

KEY = hashlib.sha256(b"one").hexdigest()
OTHER = hashlib.sha256(b"two").hexdigest()


def record(key=KEY, verdict="VALID", raw=b"raw", **changes):
    inside, rest = split(changes)
    values = {
        "deployment": "plain", "load": load(**{"name": "chat-c1", "concurrency": 1, **inside}), "key": key, "key_parts": {},
        "verdict": verdict, "raw": "chat-c1.raw.json", "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }  # fmt: skip
    return Measurement(**{**values, **rest})
