"""The header of a safetensors file, and the errors of a model's files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from servemark.errors import WeightsRefused

HEADER_LIMIT = 100_000_000
"""Largest safetensors header in bytes, the limit of the reference implementation; also of a model's JSON files."""
AGAIN = "Fetch the file again."


def refused(path: Path, reason: str, what: str, do: str = AGAIN) -> WeightsRefused:
    """Return the error of one file of a model."""
    return WeightsRefused(f"The model file {path.name} cannot be used: {what}", look=str(path), do=do, reason=reason)


def unreadable(path: Path, error: OSError) -> WeightsRefused:
    """Return the error of a file or folder that the system does not let us read."""
    return refused(path, "weights_unreadable", f"unreadable: {error.strerror}.", "Check its permissions.")


def read_header(path: Path) -> tuple[int, int]:
    """Return tensor bytes and parameter count of one safetensors file, after checking its header against its size.

    Packed 4-bit weights (mxfp4, AWQ, GPTQ) are stored as integers of 8 or 32 bits, and count as stored elements.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise _truncated(path, f"Its header does not fit into its {size} bytes")
            header = json.loads(stream.read(length))
        tensors = [entry for key, entry in header.items() if key != "__metadata__"]
        end = max((_whole(entry["data_offsets"][1]) for entry in tensors), default=0)
        parameters = sum(math.prod(map(_whole, entry["shape"])) for entry in tensors)
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise _truncated(path, "Its header is not that of a safetensors file") from None
    if size != 8 + length + end:
        raise _truncated(path, f"Its header asks for {8 + length + end} bytes and it has {size}")
    return end, parameters


def _whole(value: Any) -> int:
    # The format's integers are unsigned and have 64 bits.
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError("not a whole number")
    return value


def _truncated(path: Path, what: str) -> WeightsRefused:
    return refused(path, "weights_truncated", f"{what}; it is truncated or damaged.")
