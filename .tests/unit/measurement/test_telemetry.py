"""Verdict reasons from telemetry."""

from __future__ import annotations

import pytest

from builders.paths import FIXTURES
from builders.requests import FINE, codes, point, raw_of, request, thresholds
from servemark.measurement import samples, telemetry
from servemark.measurement.reasons import TABLE
from servemark.measurement.verdict import ServerFacts, judge
from servemark.records import GpuTelemetry, NodeTelemetry, Telemetry


def gpu(position: int = 0, **changes) -> GpuTelemetry:
    values = {"uuid": f"GPU-{position}", "name": "H200", "replica": "r0", "samples": 100, "busy": 0.9, "busy_max": 1.0}
    return GpuTelemetry(position=position, **(values | changes))


def of(*gpus: GpuTelemetry, **changes) -> Telemetry:
    return Telemetry(begin=0.0, end=100.0, interval_s=1.0, nodes=(NodeTelemetry(node="gn01", samples=100, gpus=gpus, **changes),))


def found(asked: Telemetry | None, load=None, **limits) -> set[str]:
    return {reason.code for reason in telemetry.reasons(asked, load or point(), thresholds(**limits))}


def test_measurement_without_telemetry_or_fault_has_no_reason():
    assert found(None) == found(of(gpu())) == found(of(fault="no driver", longest_gap_s=0.0)) == set()


@pytest.mark.parametrize(
    ("events", "throttled"),
    [
        ({"sw_power_cap": 100, "gpu_idle": 3}, False),
        ({"hw_thermal_slowdown": 2}, True),
        ({"sw_thermal_slowdown": 100}, True),
        ({"hw_power_brake": 5}, True),
        ({"hw_slowdown": 1}, False),
    ],
)
def test_heat_and_power_brake_are_throttling_and_power_cap_is_not(events, throttled):
    assert found(of(gpu(clock_events=events))) == ({"throttled"} if throttled else set())


def test_throttling_counts_from_a_hundredth_of_samples_on():
    assert [found(of(gpu(samples=1000, clock_events={"hw_slowdown": count}))) for count in (10, 11)] == [set(), {"throttled"}]


def test_gpu_with_ranks_that_did_nothing_is_idle():
    assert found(of(gpu(), gpu(1, busy_max=0.0))) == {"idle_gpus"}
    # Not known, too few samples, no ranks.
    others = (gpu(1, busy_max=None), gpu(2, busy_max=0.0, samples=1), gpu(3, busy_max=0.0, replica=None))
    assert found(of(gpu(), *others)) == set()
    assert telemetry.idle(of(gpu(), *others)) == ["gn01:3"], "its energy is counted, so it is named"


@pytest.mark.parametrize(
    ("counts", "empty", "waited"),
    [
        # Seen on an H100: 0 of 37 samples, and 29 of 65 while the server compiled kernels.
        ([(0, 37)], 0.0, False),
        ([(29, 65)], 0.0, True),
        ([(1, 20)], 0.0, False),
        ([(2, 100)], 0.0, False),
        ([(3, 100)], 0.0, True),
        ([(29, 65), (0, 65)], 0.0, False),
        ([(29, 65)], 0.5, False),
        ([(None, 65)], 0.0, False),
    ],
)
def test_gpus_that_wait_while_requests_are_in_flight_are_named(counts, empty, waited):
    asked = of(*(gpu(number, idle_samples=idle, samples=every) for number, (idle, every) in enumerate(counts)))
    reasons = {reason.code for reason in telemetry.reasons(asked, point(), thresholds(), empty)}
    assert reasons == ({"gpus_waited"} if waited else set())


def test_time_without_requests_does_not_count_as_waiting():
    apart = raw_of([request(0, start=0.0), request(1, start=1000.0)])
    facts = ServerFacts(client_exit_code=0, telemetry=of(gpu(idle_samples=90)))
    assert "gpus_waited" not in codes(judge(apart, point(), thresholds(), facts))
    together = raw_of([request(0), request(1)])
    assert "gpus_waited" in codes(judge(together, point(), thresholds(), facts))


def test_replicas_that_were_not_asked_may_be_idle():
    both = of(gpu(), gpu(1, replica="r1", busy_max=0.0), gpu(2, replica="r10", busy_max=0.0))
    assert found(both) == {"idle_gpus"} and found(both, point(ask="replica")) == set()
    assert found(of(gpu(busy_max=0.0), gpu(1, replica="r1")), point(ask="replica")) == {"idle_gpus"}


def test_process_of_others_counts_on_gpus_with_ranks():
    assert found(of(gpu(foreign_processes=(7,)))) == {"foreign_process"}
    assert found(of(gpu(), gpu(1, replica=None, foreign_processes=(7,)))) == set()


@pytest.mark.parametrize(("seconds", "gap"), [(3.0, False), (3.01, True)])
def test_gap_counts_above_three_seconds(seconds, gap):
    assert found(of(gpu(), longest_gap_s=seconds)) == ({"telemetry_gap"} if gap else set())


@pytest.mark.parametrize(("cores", "limit", "busy"), [(0.8, 0.1, False), (0.81, 0.1, True), (0.81, 0.2, False), (None, 0.1, False)])
def test_load_of_others_is_compared_with_share_of_cores(cores, limit, busy):
    assert found(of(cores=8, foreign_cores=cores), max_foreign_cpu=limit) == ({"foreign_load"} if busy else set())


def test_reasons_are_suspect_and_recomputable_from_record():
    raw = raw_of([request(n) for n in range(4)])
    facts = ServerFacts(client_exit_code=0, telemetry=of(gpu(foreign_processes=(7,))))
    assert codes(judge(raw, point(), thresholds(), FINE)) == set()
    judgement = judge(raw, point(), thresholds(), facts)
    assert (judgement.verdict, codes(judgement)) == ("SUSPECT", {"foreign_process"}) and judgement.figures


def test_all_reasons_are_new_in_archive_format_3():
    rows = [TABLE[code] for code in ("throttled", "gpus_waited", "idle_gpus", "foreign_process", "telemetry_gap", "foreign_load")]
    assert {(row.since, row.severities) for row in rows} == {(3, ("SUSPECT",))} and all(row.remedy for row in rows)


@pytest.mark.parametrize(
    ("name", "begin", "end", "idle", "expected"),
    [
        ("steady", 1795604514.226, 1795604551.654, 0, set()),
        ("kernels-compiled", 1795603851.722, 1795603917.365, 29, {"gpus_waited"}),
    ],
)
def test_real_samples_show_that_a_server_compiled_kernels(name, begin, end, idle, expected):
    node = samples.read("vm", FIXTURES / "nvml" / f"gpu-watch-h100-{name}.jsonl")
    made = samples.telemetry([node], samples.Window(since=begin - 10, begin=begin, end=end, now=end + 2))
    assert made.gpus[0].idle_samples == idle and found(made) == expected


def test_real_samples_of_two_h100_show_power_idle_gpu_and_foreign_process():
    node = samples.read("vm", FIXTURES / "nvml" / "gpu-watch-h100x2.jsonl")
    begin, end = 1795582343.5, 1795582355.5
    made = samples.telemetry([node], samples.Window(since=begin - 10, begin=begin, end=end, now=end + 2))
    (one,) = made.nodes
    busy, unused = one.gpus
    assert one.samples == 12 and one.longest_gap_s == pytest.approx(1.0, abs=0.01)
    assert busy.energy_j == pytest.approx(busy.power_w * (end - begin), rel=0.01), "the counter agrees with the power"
    assert (busy.power_w, busy.temperature_max_c, busy.sm_clock_min_mhz) == (pytest.approx(697, abs=1), 67, 1305)
    assert busy.clock_events == {"sw_power_cap": 12} and busy.foreign_processes == (632,) and unused.foreign_processes == ()
    assert unused.energy_j == pytest.approx(73.2 * (end - begin), rel=0.01) and telemetry.idle(made) == ["vm:1"]
    assert found(made) == {"idle_gpus", "foreign_process"}, "a power cap is no reason"
