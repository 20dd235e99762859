"""A measurement to be kept in a ledger."""

from __future__ import annotations

import hashlib

from servemark.records import Measurement

KEY = hashlib.sha256(b"one").hexdigest()
OTHER = hashlib.sha256(b"two").hexdigest()


def record(key=KEY, verdict="VALID", raw=b"raw", **changes):
    values = {
        "deployment": "plain", "point": "chat-c1", "workload": "chat", "concurrency": 1, "repetition": 1, "seed": 0,
        "input_tokens": 1, "output_tokens": 1, "key": key, "key_parts": {}, "verdict": verdict,
        "raw": "chat-c1.raw.json", "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }  # fmt: skip
    return Measurement(**{**values, **changes})
