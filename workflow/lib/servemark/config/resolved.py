"""Read the resolved configuration of a run. Every stage does. So this is not in ``load``, whose checks no stage needs."""

import json
import os
from pathlib import Path

from pydantic import ValidationError

from servemark.config.model import Config
from servemark.config.problems import describe, from_pydantic
from servemark.errors import ConfigError


def read_resolved(path: str | os.PathLike[str]) -> Config:
    """Read a configuration written by ``Config.model_dump(mode="json")``; raise ConfigError if it is missing or does not fit."""
    try:
        return Config.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    except ValidationError as error:
        fault = "; ".join(describe(problem, {}) for problem in from_pydantic(error, {}))
    except (OSError, ValueError) as error:
        fault = str(error)
    raise ConfigError(
        f"The resolved configuration {path} cannot be used: {fault}",
        do="Delete it and run snakemake again, which writes it from the configuration.",
    )
