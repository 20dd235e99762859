"""The table of environment variables: no row hides a name of another row; each column has its effect."""

from __future__ import annotations

from itertools import chain

import pytest

from servemark.variables import passed_on, table

NAMES = list(chain.from_iterable(row.names for row in table.TABLE))


def test_no_pattern_occurs_twice_and_no_row_hides_a_full_name():
    assert len(set(NAMES)) == len(NAMES)
    for row in table.TABLE:
        assert [name for name in row.names if "*" not in name and table.row(name) is not row] == []


@pytest.mark.parametrize("family", [name for name in NAMES if name.endswith("_*")])
def test_family_matches_a_name_of_its_own(family: str):
    assert table.row(f"{family[:-1]}QQ").names.count(family) == 1


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("NCCL_ALGO", (True, True, True)),
        ("NCCL_DEBUG", (True, True, False)),
        ("NCCL_TOPO_FILE", (True, True, True)),
        ("NCCL_TUNER_DIR", (True, False, False)),
        ("VLLM_ATTENTION_BACKEND", (False, True, False)),
        ("VLLM_CACHE_ROOT", (True, False, False)),
        ("VLLM_NCCL_SO_PATH", (False, True, False)),
        ("HF_TOKEN", (False, False, False)),
        ("OMP_NUM_THREADS", (False, True, False)),
        ("SLURM_JOB_ID", (True, False, False)),
        ("MY_OWN", (True, True, False)),
        ("TORCH_CREDENTIALS", (True, True, False)),
    ],
)
def test_columns(name: str, columns: tuple[bool, bool, bool]):
    found = table.row(name)
    assert (found.server, table.in_key(name), table.in_key_if_inherited(name)) == columns
    assert (name in passed_on.handed_on({name: "x"})) == found.server


def test_refused_variables_and_the_accepted_value():
    assert {name for name in NAMES if table.refusal(name, "1")} == {"CUDA_VISIBLE_DEVICES", "VLLM_USE_RUST_FRONTEND"}
    assert table.refusal("VLLM_USE_RUST_FRONTEND", " 0") is None
    assert table.refusal("CUDA_VISIBLE_DEVICES", "0")
