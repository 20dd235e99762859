"""The ledger key of an accuracy check."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servemark.measurement.key import digest
from servemark.records import AskedCheck

FORMAT = 1
"""Form of a check's part of the ledger key, and of how lm-eval is called. Raise it if another call may give another value."""


def key_parts(asked: AskedCheck) -> dict[str, Any]:
    """Return a check's part of the ledger key. A user's task counts by the content of its folder and the name of its file."""
    task = {"file": Path(asked.task).name, "data": asked.data} if asked.task else {"name": asked.name}
    return {"check": asked.model_dump(include={"limit", "shots", "metric", "chat_template", "lock"}) | task | {"format": FORMAT}}


def key(deployment: Mapping[str, Any], asked: AskedCheck) -> str:
    """Return the ledger key of a check. ``deployment``: the deployment's part, as for load points."""
    return digest(deployment, key_parts(asked))
