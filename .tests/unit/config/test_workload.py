"""Workloads: a union by ``dataset`` that travels into the load points."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from servemark.config.workload import KINDS, Load, Workload
from servemark.records import AnyPrompts, DatasetSource, RandomPrompts, StagedPrompts

VALUES = {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 32, "concurrency": 4}


def test_configuration_and_records_have_the_same_kinds():
    mapping = TypeAdapter(AnyPrompts).json_schema()["discriminator"]["mapping"]
    assert set(mapping) == set(KINDS)
    assert {choice["$ref"].rpartition("/")[2] for choice in TypeAdapter(Workload).json_schema()["oneOf"]} == {
        kind.__name__ for kind in KINDS.values()
    }


def test_keys_outside_the_load_belong_to_the_prompts():
    workload = TypeAdapter(Workload).validate_python(VALUES)
    assert isinstance(workload, KINDS["random"])
    assert workload.prompts == RandomPrompts(dataset="random", input_tokens=64, output_tokens=32)
    assert {*RandomPrompts.model_fields, *Load.model_fields} == set(KINDS["random"].model_fields)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": {}},
        {"dataset": {"file": "a", "sharegpt": "b"}},
        {"output_tokens": 0},
        {"input_tokens": 8},
    ],
)
def test_a_data_set_has_one_source_and_known_lengths(change):
    values = {"dataset": {"file": "a.jsonl"}, "output_tokens": 4, "requests": 8, "concurrency": 1}
    assert TypeAdapter(Workload).validate_python(values).prompts == StagedPrompts(
        dataset="staged", name=DatasetSource(file="a.jsonl").name, output_tokens=4
    )
    with pytest.raises(ValidationError):
        TypeAdapter(Workload).validate_python(values | change)
