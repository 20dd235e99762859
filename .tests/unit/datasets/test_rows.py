"""Rows of datasets: faults with their places, staging, lengths."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from servemark.datasets import recorded, rows, staging, token_counts
from servemark.errors import DatasetRefused
from servemark.processes import identity
from servemark.progress import Progress
from servemark.records import DatasetSource, Lengths
from servemark.weights import builtin, chat_template


def written(tmp_path, *lines: bytes) -> DatasetSource:
    path = tmp_path / "my prompts.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return DatasetSource(file=str(path))


PROGRESS = Progress(None, "stage_dataset")
GOOD = b'{"prompt": "one", "output_tokens": 4}'


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"[]", b"3", b"{}", b'{"prompt": 3}', b'{"prompt": " "}', b'{"prompt": "\\ud800"}', b"\xff",
        b'{"prompt": "a", "output_tokens": 0}', b'{"prompt": "a", "output_tokens": true}', b'{"prompt": "a", "output_tokens": 1.5}',
    ],
)  # fmt: skip
def test_a_bad_row_has_its_line_number(tmp_path, line):
    source = written(tmp_path, GOOD, line, GOOD)
    (fault,) = rows.faults(source, recorded=False, chat=False)
    assert fault.startswith("line 2 ")
    with pytest.raises(DatasetRefused):
        staging.stage(source, tmp_path / "cache", PROGRESS)
    assert list((tmp_path / "cache" / "datasets").iterdir()) == []


def test_rows_without_lengths_are_faults_only_if_recorded(tmp_path):
    source = written(tmp_path, GOOD, *[b'{"prompt": "a"}'] * 9)
    assert rows.faults(source, recorded=False, chat=False) == []
    found = rows.faults(source, recorded=True, chat=False)
    assert len(found) == rows.FAULTS + 1
    assert [fault.split(" has")[0] for fault in found[:-1]] == [f"line {number}" for number in range(2, 7)]


def test_staged_rows_are_as_readable_as_the_source(tmp_path):
    source = written(tmp_path, GOOD)
    os.chmod(source.path, 0o600)
    staged = staging.stage(source, tmp_path / "cache", PROGRESS)
    assert os.stat(staged.path).st_mode & 0o777 == 0o600


def test_missing_and_empty_files_are_faults(tmp_path):
    assert len(rows.faults(DatasetSource(file=str(tmp_path / "no.jsonl")), recorded=False, chat=False)) == 1
    assert len(rows.faults(written(tmp_path), recorded=False, chat=False)) == 1
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps([{"conversations": [{"from": "human", "value": "a question"}]}]))
    kinds = [DatasetSource(file=str(tmp_path)), DatasetSource(sharegpt=str(alone)), written(tmp_path)]
    assert len({rows.faults(kind, recorded=False, chat=False)[0].removeprefix(kind.path) for kind in kinds}) == 3, "each has its words"


def test_digest_depends_on_rows_and_not_on_their_spelling_or_path(tmp_path):
    (tmp_path / "b").mkdir()
    first = staging.stage(written(tmp_path, GOOD), tmp_path / "cache", PROGRESS)
    second = staging.stage(written(tmp_path / "b", b'{ "output_tokens":4,"prompt":"one", "id": 7}'), tmp_path / "cache", PROGRESS)
    third = staging.stage(written(tmp_path, GOOD.replace(b"4", b"5")), tmp_path / "cache", PROGRESS)
    assert first.sha256 == second.sha256 != third.sha256 and first.name != second.name
    assert (first.rows, first.prompt_bytes.most, first.output_tokens.most) == (1, 3, 4)


def test_sharegpt_takes_first_messages_and_leaves_out_single_ones(tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    entries = [{"id": "a", "conversations": turns}, {"id": "b", "conversations": turns[:1]}, {"id": "c", "conversations": turns}]
    path.write_text(json.dumps(entries, indent=1))
    staged = staging.stage(DatasetSource(sharegpt=str(path)), tmp_path / "cache", PROGRESS)
    assert (staged.rows, staged.skipped, staged.output_tokens) == (2, 1, None)
    path.write_text(json.dumps(entries)[:-20])
    (fault,) = rows.faults(DatasetSource(sharegpt=str(path)), recorded=False, chat=False)
    assert fault.startswith("entry 3 ")


def test_memory_does_not_depend_on_the_number_of_rows(tmp_path):
    source = written(tmp_path, *[b'{"prompt": "%s"}' % (b"x" * 1000)] * 20_000)
    tracemalloc.start()
    staged = staging.stage(source, tmp_path / "cache", PROGRESS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert staged.rows == 20_000 and peak < 2 * 2**20


def test_every_length_is_in_a_bin():
    found = Lengths.of([(0, 1), (1, 2), (7, 3), (1000, 4)])
    assert (sum(found.counts), found.least, found.most) == (10, 0, 1000)
    assert len(found.edges) == len(found.counts) + 1 and found.edges[0] <= 0 and found.edges[-1] > 1000


def test_without_a_tokenizer_the_bytes_are_the_bound(tmp_path):
    staged = staging.stage(written(tmp_path, GOOD), tmp_path / "cache", PROGRESS)
    assert token_counts.TokenCounts(tmp_path).longest(staged) == (3 + token_counts.SPECIAL, None)


SYSTEM, USER = ({"role": role, "content": text} for role, text in (("system", "Be brief."), ("user", "Why é?")))
TALK = json.dumps({"messages": [SYSTEM, USER], "output_tokens": 3}).encode()


@pytest.mark.parametrize(
    "messages",
    [
        [], "x", ["x"], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"role": "user", "content": " "}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}], [USER, {"role": "assistant", "content": "Because."}],
    ],
)  # fmt: skip
def test_bad_messages_have_their_line_number(tmp_path, messages):
    source = written(tmp_path, TALK, json.dumps({"messages": messages}).encode())
    (fault,) = rows.faults(source, recorded=False, chat=True)
    assert fault.startswith("line 2 ")


def test_messages_need_the_chat_route_and_no_prompt(tmp_path):
    source = written(tmp_path, GOOD, TALK)
    assert rows.faults(source, recorded=True, chat=True) == []
    (fault,) = rows.faults(source, recorded=True, chat=False)
    assert fault.startswith("line 2 ")
    both = written(tmp_path, json.dumps({"prompt": "a", "messages": [USER]}).encode())
    (fault,) = rows.faults(both, recorded=False, chat=True)
    assert fault.startswith("line 1 ")


def test_conversations_are_staged_with_roles_and_contents(tmp_path):
    extra = json.dumps({"messages": [SYSTEM | {"name": "x"}, USER], "output_tokens": 3, "id": 1}).encode()
    staged = staging.stage(written(tmp_path, GOOD, extra), tmp_path / "cache", PROGRESS)
    assert (staged.rows, staged.conversations, staged.prompt_bytes.most) == (2, 1, 16)
    lines = [json.loads(line) for line in Path(staged.path).read_text(encoding="utf-8").splitlines()]
    assert lines == [json.loads(GOOD), json.loads(TALK)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    builtin.make("tiny-dense", folder)
    return folder


def test_longest_row_has_the_tokens_of_the_chat_template(tmp_path, model):
    template = chat_template.read(model, {})
    plain, chat = token_counts.TokenCounts(model), token_counts.TokenCounts(model, template)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    expected = len(tokenizer.encode(template.render([SYSTEM, USER]), add_special_tokens=False).ids)
    assert chat.added == len(tokenizer.encode(template.render([{"role": "user", "content": ""}])).ids) == 13
    conversations = staging.stage(written(tmp_path, GOOD, TALK), tmp_path / "cache", PROGRESS)
    prompts = staging.stage(written(tmp_path, GOOD), tmp_path / "cache", PROGRESS)
    for _ in range(2):  # the second time from the remembered file
        assert chat.longest(conversations) == (expected, 2)
        assert chat.longest(prompts) == (plain.longest(prompts)[0] + chat.added, 1)


def test_longest_row_has_its_line(tmp_path, model):
    """Rows are counted in groups; the longest one is in the second."""
    texts = [json.dumps({"prompt": "a " * (9 if number == 299 else 3)}).encode() for number in range(400)]
    staged = staging.stage(written(tmp_path, *texts), tmp_path / "cache", PROGRESS)
    counts = token_counts.TokenCounts(model)
    longest = counts.longest(staged)
    assert longest[1] == 300
    (kept,) = Path(staged.path).parent.glob("*.json")
    # A file of an earlier version has no line.
    kept.write_text(json.dumps({"longest": 1}))
    assert counts.longest(staged) == longest


def test_row_that_the_template_refuses_has_its_number(tmp_path, model):
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    counts = token_counts.TokenCounts(model, chat_template.read(model, {"chat-template": text}))
    staged = staging.stage(written(tmp_path, GOOD, TALK), tmp_path / "cache", PROGRESS)
    with pytest.raises(token_counts.RowRefused, match=r"line 2 .*no system"):
        counts.longest(staged)


TURNS = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because it is so."}, {"from": "human", "value": "Oh."}]


def sharegpt(tmp_path, *responses: str) -> DatasetSource:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": [TURNS[0], TURNS[1] | {"value": text}, TURNS[2]]} for text in responses]))
    return DatasetSource(sharegpt=str(path))


def test_recorded_responses_are_staged_only_if_they_are_needed(tmp_path):
    source = sharegpt(tmp_path, "Because.", "It is so.")
    plain, answered = (staging.stage(source, tmp_path / "cache", PROGRESS, responses=asked) for asked in (False, True))
    assert plain.responses is None and plain.sha256 == answered.sha256
    lines = [json.loads(line) for line in Path(answered.responses).read_text().splitlines()]
    assert lines == [{"prompt": "Why?", "response": "Because."}, {"prompt": "Why?", "response": "It is so."}]
    assert rows.faults(source, recorded=True, chat=False) == []


def test_responses_get_the_lengths_of_the_tokenizer(tmp_path, model):
    texts = ("Because.", "", "It is so because the sea is salt.")
    staged = staging.stage(sharegpt(tmp_path, *texts), tmp_path / "cache", PROGRESS, responses=True)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts if text]
    found = recorded.counted(staged, token_counts.TokenCounts(model))
    assert (found.rows, found.most) == (2, max(lengths)) and found.sha256 != staged.sha256
    path = Path(staged.path).with_name(f"{found.sha256}.jsonl")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.sha256
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"prompt": "Why?", "output_tokens": tokens} for tokens in lengths
    ]
    path.unlink()
    assert recorded.counted(staged, token_counts.TokenCounts(model)) == found and path.exists(), "a lost file is made again"
    Path(staged.responses).unlink()
    assert recorded.counted(staged, token_counts.TokenCounts(model)) == found, "the lengths are remembered"
    assert recorded.counted(staged, token_counts.TokenCounts(tmp_path)) is None, "no tokenizer.json"


def test_drafts_of_ended_processes_are_removed(tmp_path):
    folder = tmp_path / "cache" / "datasets"
    folder.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    gone = replace(identity.myself(), pid=ended.pid)
    ended.wait()
    elsewhere = replace(gone, host="elsewhere")
    names = {one: folder / f".draft-{one}-x" for one in (identity.myself(), gone, elsewhere, "nobody")}
    for path in names.values():
        path.touch()
    staging.stage(written(tmp_path, GOOD), tmp_path / "cache", PROGRESS)
    assert {one for one, path in names.items() if path.exists()} == {identity.myself(), elsewhere, "nobody"}
    for path in names.values():
        path.touch()
        os.utime(path, (1, 1))
    staging.stage(written(tmp_path, GOOD), tmp_path / "cache", PROGRESS)
    assert {one for one, path in names.items() if path.exists()} == {identity.myself()}


def trace(tmp_path, *moments: object) -> DatasetSource:
    source = written(tmp_path, *(json.dumps({"prompt": "a", "output_tokens": 2, "timestamp": moment}).encode() for moment in moments))
    return source.model_copy(update={"arrivals": "recorded"})


def test_arrivals_begin_at_zero_and_give_the_recorded_rate(tmp_path):
    source = trace(tmp_path, 1000, 1000.5, 1000.5, 1002)
    assert rows.faults(source, recorded=True, chat=False) == []
    staged = staging.stage(source, tmp_path / "cache", PROGRESS)
    lines = [json.loads(line) for line in Path(staged.path).read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == [0.0, 0.5, 0.5, 2.0] and staged.arrivals_per_s == 1.5
    plain = staging.stage(source.model_copy(update={"arrivals": None}), tmp_path / "cache", PROGRESS)
    assert plain.arrivals_per_s is None and "timestamp" not in Path(plain.path).read_text() and plain.name != staged.name


@pytest.mark.parametrize("moment", [None, "1", True, 0.5, -1, float("nan"), float("inf")])
def test_bad_arrivals_have_their_line_number(tmp_path, moment):
    (fault,) = rows.faults(trace(tmp_path, 1, moment, 2), recorded=False, chat=False)
    assert fault.startswith("line 2 ")


def test_arrivals_at_one_moment_have_no_rhythm(tmp_path):
    with pytest.raises(DatasetRefused):
        staging.stage(trace(tmp_path, 1, 1), tmp_path / "cache", PROGRESS)


@pytest.mark.parametrize("moment", [int("9" * 400), 1e308, 1_800_000_000_000])
def test_timestamp_that_is_no_time_in_seconds_is_a_fault(tmp_path, moment):
    (fault,) = rows.faults(trace(tmp_path, 1, moment), recorded=False, chat=False)
    assert fault.startswith("line 2")


def test_check_finds_what_the_run_refuses_in_a_trace(tmp_path):
    assert len(rows.faults(trace(tmp_path, 3, 3, 3), recorded=False, chat=False)) == 1, "one moment has no rate"
    source = trace(tmp_path, 1, 2, 3)
    assert rows.faults(source, recorded=False, chat=False, requests=3) == []
    assert len(rows.faults(source, recorded=False, chat=False, requests=4)) == 1


def test_same_rows_stay_readable_for_all_who_could_read_them(tmp_path):
    source = written(tmp_path, b'{"prompt": "a"}')
    staged = staging.stage(source, tmp_path / "cache", PROGRESS)
    assert os.stat(staged.path).st_mode & 0o777 == 0o644
    private = tmp_path / "private.jsonl"
    private.write_bytes(Path(source.path).read_bytes())
    private.chmod(0o600)
    assert staging.stage(DatasetSource(file=str(private)), tmp_path / "cache", PROGRESS).path == staged.path
    assert os.stat(staged.path).st_mode & 0o777 == 0o644
