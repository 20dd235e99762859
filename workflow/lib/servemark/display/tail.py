"""New lines of a JSON lines file that other processes write."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tail:
    """Yields what is appended to a file after this object was made; the file may not exist yet."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the new whole lines."""
        if not self._path.exists() or self._path.stat().st_size <= self._offset:
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            block = stream.read()
        whole = block[: block.rfind(b"\n") + 1]  # the last line may be incomplete
        self._offset += len(whole)
        for line in whole.splitlines():
            # A file system may mix the lines of several machines.
            with contextlib.suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    yield found
