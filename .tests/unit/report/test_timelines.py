"""Timelines of the servers' metrics: joined to their measurement, summed over replicas, bounded in size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import vl_convert
from pydantic import ValidationError

from builders import report_data
from builders import report_data_parts as parts
from servemark.records import ServerTimeline, Timeline
from servemark.report import page, timelines


def server(replica="r0", seconds=(0.0, 1.0, 2.0), running=(0.0, 2.0, 0.0), waiting=(0.0, 1.0, 0.0), kv=(0.0, 0.5, 0.0)):
    return ServerTimeline(replica=replica, seconds=seconds, running=running, waiting=waiting, kv_cache_usage=kv)


def shown(*servers, **changes):
    item = report_data.measurement(**changes)
    timeline = parts.timeline(item).model_copy(update={"servers": servers})
    return [row for _, row in timelines.shown([item], {(item.deployment, item.load.name): timeline})]


def test_timeline_sums_replicas_and_takes_fullest_cache():
    (found,) = shown(server(), server("r1", running=(1.0, 3.0, 0.0), kv=(0.1, 0.75, 0.0)))
    assert found["columns"] == {
        "seconds": [0, 1, 2], "running": [1, 5, 0], "waiting": [0, 2, 0], "kv_percent": [10, 75, 0],
    }  # fmt: skip
    assert (found["samples"], found["most_running"], found["most_waiting"], found["most_kv_percent"]) == (3, 5.0, 2.0, 75.0)
    assert found["mean_running"] == 2.0 and found["mean_kv_percent"] == pytest.approx(85 / 3)


def test_fullest_engine_is_multiple_of_mean():
    seconds, running = tuple(map(float, range(6))), (0.0, 4.0, 12.0, 12.0, 11.0, 2.0)
    said = server(seconds=seconds, running=running, waiting=(0.0,) * 6, kv=(None,) * 6)
    # Filling and draining (seconds 1 and 5) do not count.
    several = said.model_copy(update={"engines": 2, "fullest": (0.0, 4.0, 7.0, 9.0, 5.5, 2.0)})
    (found,) = shown(several)
    assert found["fullest_share"] == pytest.approx(7 * 2 / 12)
    assert shown(said)[0]["fullest_share"] is None
    with pytest.raises(ValidationError, match="different lengths"):
        ServerTimeline.model_validate(several.model_dump() | {"fullest": (1.0,)})


def test_second_without_response_of_one_replica_is_skipped():
    (found,) = shown(server(), server("r1", seconds=(0.0, 2.0), running=(0.0, 0.0), waiting=(0.0, 1.0), kv=(0.0, 0.0)))
    assert found["columns"]["seconds"] == [0, 2]


def test_idle_seconds_at_both_ends_are_removed():
    long = tuple(float(second) for second in range(20))
    busy = tuple(4.0 if 8 <= second < 12 else 0.0 for second in range(20))
    (found,) = shown(server(seconds=long, running=busy, waiting=(0.0,) * 20, kv=(None,) * 20))
    assert (found["columns"]["seconds"][0], found["columns"]["seconds"][-1]) == (7.0, 12.0)
    assert found["mean_kv_percent"] is None and "kv_percent" not in found["columns"]


def test_idle_server_has_no_timeline():
    assert shown(server(running=(0.0,) * 3, waiting=(0.0,) * 3)) == []
    assert shown(server(seconds=(), running=(), waiting=(), kv=())) == []


def test_long_timeline_has_means_and_true_maximum():
    count = 1000
    running = tuple(float(second % 10) for second in range(count))
    (found,) = shown(server(seconds=tuple(map(float, range(count))), running=running, waiting=(1.0,) * count, kv=(0.5,) * count))
    assert found["seconds_each"] == 4 and len(found["columns"]["seconds"]) == 250 <= timelines.SAMPLES
    assert found["columns"]["running"][0] == 1.5 and found["most_running"] == 9.0 and found["samples"] == count


def test_many_timelines_are_reduced_to_best_and_heaviest():
    items = [report_data.measurement("a", load, output=1000.0 - abs(load - 40)) for load in range(1, 71)]
    items.append(report_data.invalid("a", concurrency=100))
    every = {(item.deployment, item.load.name): parts.timeline(item) for item in items}
    assert [record.load.concurrency for record, _ in timelines.shown(items, every)] == [40, 70]
    assert [record.load.concurrency for record, _ in timelines.shown(items[:3], every)] == [1, 2, 3]


def test_samples_of_all_timelines_are_bounded():
    items = [report_data.measurement(f"d{number}", load, output=100.0 + load) for number in range(60) for load in (1, 2, 4)]
    every = {(item.deployment, item.load.name): parts.timeline(item, seconds=400) for item in items}
    found = timelines.shown(items, every)
    assert len(found) == 60
    assert sum(len(row["columns"]["seconds"]) for _, row in found) <= timelines.ALL_SAMPLES


def test_busiest_timeline_is_selected():
    items = [report_data.measurement("a", load, output=float(load)) for load in (1, 9, 4)]
    data = replace(report_data.demo(), measurements=items, timelines=parts.timelines(items), distributions=())
    made = page.content(data)
    assert made.block["timelines"][made.busiest]["concurrency"] == 9
    assert page.content(replace(data, timelines={})).busiest == 0


@pytest.mark.parametrize(
    ("attempt", "place"),
    [
        ("results/demo/deployments/plain/attempts/007", "deployments/plain/attempts/007/timelines/chat-c8-qNone-r1.json"),
        (None, None), ("", None), ("../../etc", None), ("attempts/x1", None), ("attempts/1", None),
    ],
)  # fmt: skip
def test_timeline_path_needs_valid_attempt(attempt, place):
    found = timelines.place(report_data.measurement(attempt=attempt))
    assert found == (Path(place) if place else None)


def test_timeline_of_another_measurement_does_not_belong():
    item = report_data.measurement()
    timeline = parts.timeline(item)
    assert timelines.belongs(timeline, item)
    assert not timelines.belongs(timeline, item.model_copy(update={"started_at": "2026-03-05T10:12:44Z"}))
    assert not timelines.belongs(timeline, item.model_copy(update={"deployment": "other"}))


def test_unequal_lengths_and_nan_are_refused():
    with pytest.raises(ValidationError, match="different lengths"):
        server(seconds=(0.0, 1.0))
    with pytest.raises(ValidationError):
        server(running=(0.0, float("nan"), 0.0))


def test_timeline_plots_compile():
    for spec in timelines.specs().values():
        values = [{"seconds": 1, "kind": "running", "value": 3}]
        assert vl_convert.vegalite_to_vega({**spec, "data": {"values": values}})["marks"]


def test_timeline_record_round_trip(tmp_path):
    timeline = parts.timeline(report_data.measurement(), servers=2)
    path = Timeline.path(tmp_path, timeline.point)
    timeline.write(path)
    assert Timeline.read(path) == timeline
