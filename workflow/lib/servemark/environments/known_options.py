"""Options of the vLLM versions that the shipped lock files pin, so that a configuration is checked before its environment exists.

``in_model_env/list_options.py`` of an environment wrote each file of ``vllm-options/``; docs/reference/environments.md shows how.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servemark.environments.build import IN_MODEL_ENV
from servemark.environments.options import by_name
from servemark.records import Argument

SCRIPT = IN_MODEL_ENV / "list_options.py"
FOLDER = Path(__file__).with_name("vllm-options")


@dataclass(frozen=True)
class Known:
    """The options of one vLLM."""

    version: str
    serve: tuple[Argument, ...]
    client: tuple[Argument, ...]

    @functools.cached_property
    def by_name(self) -> tuple[dict[str, Argument], dict[str, Argument]]:
        """The options of the server and of the client by name."""
        return by_name(self.serve), by_name(self.client)


def parsed(path: Path, version: str) -> Known:
    """Read the output of :data:`SCRIPT`."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    serve, client = ([Argument.model_validate(one) for one in listed[name]] for name in ("serve_arguments", "client_arguments"))
    return Known(version, tuple(serve), tuple(client))


@functools.cache
def shipped(version: str) -> Known | None:
    """Return the options of a version of vLLM, if a file here has them."""
    path = FOLDER / f"{version}.json"
    return parsed(path, version) if path.is_file() else None


def of_versions(versions: Sequence[str]) -> tuple[Known, ...]:
    """Return the options of every version; () if those of one are not known, so that nothing is refused that it may take."""
    found = [shipped(version) for version in versions]
    return tuple(one for one in found if one) if all(found) else ()
