"""What planning finds out about prompts: lengths with the chat template, and what cannot be sent."""

from __future__ import annotations

import json
import shutil

import pytest

from builders.loads import load
from builders.planning import CHECK
from servemark.datasets import staging
from servemark.errors import PlanRefused
from servemark.planning import prompts
from servemark.progress import Progress
from servemark.records import Argument, DatasetSource, PlannedSearch, StagedPrompts

TALK = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], "output_tokens": 4}


def staged(tmp_path, *rows: dict):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return staging.stage(DatasetSource(file=str(path)), tmp_path / "cache", Progress(None, "stage_dataset"))


def of(dataset, **changes):
    own = StagedPrompts(dataset="staged", name=dataset.name, recorded=True, output_tokens=1)
    return load().model_copy(update={"prompts": own} | changes)


@pytest.fixture
def without_template(tiny, tmp_path):
    folder = shutil.copytree(tiny.path, tmp_path / "plain")
    (folder / "tokenizer_config.json").unlink()
    return tiny.model_copy(update={"path": str(folder)})


def test_random_prompts_grow_by_the_template_on_the_chat_route_only(tiny):
    plain, chat = prompts.resolved([load(), load(api="chat")], {}, tiny, {})
    assert (plain.prompt_tokens, chat.template_tokens, chat.prompt_tokens) == (8, 13, 21)


def test_longest_conversation_is_counted_with_the_template(tiny, tmp_path):
    dataset = staged(tmp_path, TALK)
    (found,) = prompts.resolved([of(dataset, api="chat")], {dataset.name: dataset}, tiny, {})
    assert (found.template_tokens, found.prompts.output_tokens) == (0, 4)
    assert found.prompts.input_tokens > sum(len(message["content"]) for message in TALK["messages"]) / 4 + 13


def test_longest_row_is_a_line_of_the_users_file(tiny, tmp_path):
    dataset = staged(tmp_path, {"prompt": "a"}, {"prompt": "a longer prompt"}, TALK)
    given = {dataset.name: dataset}
    found = prompts.longest_rows([of(dataset, api="chat"), load(workload="random")], given, tiny, {})
    assert found == {load().workload: f"line 3 of {tmp_path / 'rows.jsonl'}"}
    assert prompts.longest_rows([of(dataset)], given, tiny.model_copy(update={"path": str(tmp_path)}), {}) == {}


def test_messages_on_the_completions_route_are_refused(tiny, tmp_path):
    dataset = staged(tmp_path, TALK)
    with pytest.raises(PlanRefused) as refused:
        prompts.resolved([of(dataset)], {dataset.name: dataset}, tiny, {})
    assert refused.value.reason == "dataset_refused"


def test_chat_needs_a_template_of_the_model_or_of_the_deployment(without_template):
    with pytest.raises(PlanRefused) as refused:
        prompts.resolved([load(api="chat")], {}, without_template, {})
    assert refused.value.reason == "no_chat_template" and "chat-template" in refused.value.do
    own = {"chat-template": "{{ messages[0].content }}"}
    assert prompts.resolved([load(api="chat")], {}, without_template, own)[0].template_tokens == 0
    assert prompts.resolved([load()], {}, without_template, {})[0] == load()


def test_template_that_refuses_a_row_refuses_the_plan(tiny, tmp_path):
    dataset = staged(tmp_path, TALK)
    own = {"chat-template": "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ messages[0].content }}"}
    with pytest.raises(PlanRefused, match="line 1 of the staged file: one message"):
        prompts.resolved([of(dataset, api="chat")], {dataset.name: dataset}, tiny, own)


def test_trials_of_a_search_have_the_planned_prompts(tiny, tmp_path):
    dataset = staged(tmp_path, TALK)
    search = PlannedSearch(workload="chat", variable="concurrency", low=1, high=8, trials=4)
    ends = prompts.resolved([of(dataset, api="chat")], {dataset.name: dataset}, tiny, {})
    (planned,) = prompts.of_trials([search], ends)
    assert planned.planned(of(dataset, api="chat")) == ends[0] and ends[0].prompts.rows == 1
    assert planned.unplanned() == search
    assert prompts.of_trials([search], [load()]) == (search,), "an old plan has no further keys"


def test_recorded_responses_are_counted_for_the_model(tiny, tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because the sea is salt."}]
    path.write_text(json.dumps([{"conversations": turns}]))
    dataset = staging.stage(DatasetSource(sharegpt=str(path)), tmp_path / "cache", Progress(None, "stage_dataset"), responses=True)
    (found,) = prompts.resolved([of(dataset)], {dataset.name: dataset}, tiny, {})
    assert found.prompts.output_tokens > 5 and found.prompts.rows == 1
    assert found.prompts.dataset_sha256 == dataset.sha256 != found.prompts.sha256 == found.prompts.key_part()["sha256"]
    (tmp_path / "model").mkdir()
    with pytest.raises(PlanRefused) as refused:
        prompts.resolved([of(dataset)], {dataset.name: dataset}, tiny.model_copy(update={"path": str(tmp_path / "model")}), {})
    assert refused.value.reason == "dataset_refused" and refused.value.look == str(tmp_path / "model")


def test_trace_has_an_arrival_for_each_request(tiny, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a", "output_tokens": 2, "timestamp": n}) + "\n" for n in range(3)))
    dataset = staging.stage(DatasetSource(file=str(path), arrivals="recorded"), tmp_path / "cache", Progress(None, "stage_dataset"))
    timed = of(dataset, requests=4).prompts.model_copy(update={"timed": True})
    for requests in (3, 4):
        asked = load(requests=requests, request_rate=1.0).model_copy(update={"prompts": timed})
        if requests == 3:
            assert prompts.resolved([asked], {dataset.name: dataset}, tiny, {})[0].prompts.rows == 3
        else:
            with pytest.raises(PlanRefused):
                prompts.resolved([asked], {dataset.name: dataset}, tiny, {})


@pytest.mark.parametrize("options", [("seed", "self-timed"), ("seed",), ()])
def test_recorded_arrivals_need_a_client_that_has_them(planned, options):
    """Without any options, the client's are not recorded."""
    own = StagedPrompts(dataset="staged", name="d", rows=9, timed=True, output_tokens=2)
    asked = load(request_rate=2.0, concurrency=None, warmup_tokens=2).model_copy(update={"prompts": own})
    check = CHECK.model_copy(update={"client_arguments": tuple(Argument(names=(name,)) for name in options)})
    if options == ("seed",):
        with pytest.raises(PlanRefused, match=r"chat\.dataset\.arrivals"):
            planned(points=[asked], check=check)
    else:
        assert planned(points=[asked], check=check).points[0].load == asked
