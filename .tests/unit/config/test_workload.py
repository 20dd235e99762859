"""Workloads: a union by ``dataset`` that travels into the load points."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from servemark.config.workload import KINDS, Load, Workload
from servemark.records import AnyPrompts, DatasetSource, PrefixPrompts, RandomPrompts, StagedPrompts

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


GROUPS = {"prefix": {"groups": 4, "prefix_tokens": 100, "suffix_tokens": 20}}


def groups(**changes):
    values = {"dataset": GROUPS, "output_tokens": 5, "requests": 8, "concurrency": 2} | changes
    return TypeAdapter(Workload).validate_python({name: value for name, value in values.items() if value is not None})


def test_groups_of_prompts_have_the_options_of_the_client():
    prompts = groups().prompts
    assert isinstance(prompts, PrefixPrompts) and (prompts.input_tokens, prompts.output_tokens) == (120, 5)
    argv = prompts.client_arguments()
    assert argv[:2] == ["--dataset-name", "prefix_repetition"]
    given = dict(zip(argv[2::2], argv[3::2], strict=True))
    assert given == {f"--prefix-repetition-{name}": size for name, size in
                     {"prefix-len": "100", "suffix-len": "20", "num-prefixes": "4", "output-len": "5"}.items()}  # fmt: skip


def test_each_group_has_as_many_requests_as_another():
    assert groups(requests=[8, 12], concurrency=[1, 2]).requests_of(2) == (8, 12)
    paced = groups(requests=None, concurrency=None, request_rate=[1, 3], duration="3s")
    assert paced.requests_of(2) == (4, 12), "3 and 9, rounded up"
    for changes in ({"requests": 10}, {"clients": 2}, {"clients": "auto"}, {"dataset": {"prefix": {"groups": 4}}}, {"input_tokens": 8}):
        with pytest.raises(ValidationError):
            groups(**changes)


def test_recorded_arrivals_need_a_rate_one_process_and_a_file():
    values = {"dataset": {"file": "a", "arrivals": "recorded"}, "output_tokens": 4, "requests": 8, "request_rate": 2}
    prompts = TypeAdapter(Workload).validate_python(values).prompts
    assert prompts.timed and prompts.client_arguments() == ["--dataset-name", "timed_trace"]
    assert (prompts.backend, prompts.key_part()["arrivals"]) == ("openai", "recorded")
    plain = TypeAdapter(Workload).validate_python(values | {"dataset": {"file": "a"}}).prompts
    assert (plain.backend, "arrivals" in plain.key_part()) == ("servemark", False)
    for change in (
        {"request_rate": None, "concurrency": 2}, {"clients": 2}, {"client_options": {"burstiness": 2}},
        {"dataset": {"sharegpt": "a", "arrivals": "recorded"}}, {"dataset": {"file": "a", "arrivals": "x"}},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            TypeAdapter(Workload).validate_python({name: value for name, value in (values | change).items() if value is not None})
