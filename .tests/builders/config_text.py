"""A small valid configuration as text, for tests that put a fault into it."""

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
    """Write a configuration; gives its path."""
    path = folder / name
    path.write_text(text)
    return path


def failure(path: Path) -> str:
    """The message with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return str(caught.value)
