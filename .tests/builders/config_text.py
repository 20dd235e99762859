"""A small valid configuration as text, for tests that insert a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from servemark.config.load import load
from servemark.errors import ConfigError

BASE = """\
run: demo
models:
  tiny:
    source: builtin:tiny-dense
environments:
  cpu:
    lock: cpu
deployments:
  plain:
    model: tiny
    environment: cpu
    topology:
      tensor_parallel: 1
    options:
      max-model-len: 512
    variables:
      OMP_NUM_THREADS: 2
workloads:
  chat:
    dataset: random
    input_tokens: 64
    output_tokens: 32
    requests: 32
    concurrency: [1, 4]
"""


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    """Write a configuration and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def failure(path: Path) -> str:
    """Return the message that refuses a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return str(caught.value)
