"""Read servemark's own YAML files. Many jobs of a run do, and PyYAML's parser in C takes a tenth of the time of the one in Python."""

from pathlib import Path
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - the safe loader, in C where there is one
