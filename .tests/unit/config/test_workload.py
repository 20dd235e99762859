"""Workloads: a union by ``dataset`` that travels into the load points."""

from __future__ import annotations

from pydantic import TypeAdapter

from servemark.config.workload import KINDS, Load, Workload
from servemark.records import AnyPrompts, RandomPrompts

VALUES = {"dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 32, "concurrency": 4}


def test_configuration_and_records_have_the_same_kinds():
    mappings = [TypeAdapter(union).json_schema()["discriminator"]["mapping"] for union in (Workload, AnyPrompts)]
    assert [set(mapping) for mapping in mappings] == [set(KINDS)] * 2


def test_keys_outside_the_load_belong_to_the_prompts():
    workload = TypeAdapter(Workload).validate_python(VALUES)
    assert isinstance(workload, KINDS["random"])
    assert workload.prompts == RandomPrompts(dataset="random", input_tokens=64, output_tokens=32)
    assert {*RandomPrompts.model_fields, *Load.model_fields} == set(KINDS["random"].model_fields)
