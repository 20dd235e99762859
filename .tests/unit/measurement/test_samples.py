"""Samples of the nodes, reduced to the time of a load: arithmetic with known answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servemark.measurement import samples
from servemark.measurement.samples import Window

GPU = {"position": 0, "uuid": "GPU-a", "name": "H200", "replica": "r0", "mig": False}
WINDOW = Window(since=100.0, begin=102.5, end=106.5, now=108.2)


def gpu_line(t: float, **changes) -> dict:
    """A GPU at 400 W whose energy counter began at 0 at t = 0."""
    values = {
        "power_w": 400.0, "energy_j": 400.0 * t, "sm_mhz": 1500.0, "events": 0, "temperature_c": 60, "busy_percent": 80,
        "memory_mib": 1000, "foreign": [], "unattributed": 0,
    } | changes  # fmt: skip
    return {"t": t, "gpus": [list(values.values())]}


def node(folder: Path, lines: list[dict], gpus: tuple[dict, ...] = (GPU,), **header) -> samples.NodeSamples:
    first = {"node": "gn01", "started": 100.0, "interval_s": 1.0, "kind": "gpu", "gpus": gpus, **header}
    path = folder / "gn01.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]))
    return samples.read("gn01", path)


def cpu_node(folder: Path, lines: list[dict], **header) -> samples.NodeSamples:
    return node(folder, lines, (), kind="cpu", cores=8, **header)


def test_energy_is_interpolated_at_both_ends(tmp_path):
    # 100 W before the load and after it, 500 W during it; the counter is read a moment before each change.
    counter = {102: 0.0, 103: 300.0, 104: 800.0, 105: 1300.0, 106: 1800.0, 107: 2100.0}
    lines = [gpu_line(float(t), energy_j=joules) for t, joules in counter.items()]
    (found,) = samples.telemetry([node(tmp_path, lines)], WINDOW).gpus
    # Half of the first interval, three whole ones, half of the last.
    assert found.energy_j == pytest.approx(150 + 1500 + 150)


def test_statistics_cover_the_load_alone(tmp_path):
    lines = [
        gpu_line(102.0, sm_mhz=300.0, temperature_c=99),
        gpu_line(103.0, power_w=300.0, sm_mhz=1200.0, events=0x4 | 0x40, busy_percent=50),
        gpu_line(104.0, power_w=500.0, sm_mhz=1800.0, events=0x4, temperature_c=70, memory_mib=2000),
        gpu_line(107.0, power_w=100.0, events=0x1),
    ]
    (found,) = samples.telemetry([node(tmp_path, lines)], WINDOW).gpus
    assert (found.samples, found.power_w, found.sm_clock_mhz, found.sm_clock_min_mhz) == (2, 400.0, 1500.0, 1200.0)
    assert (found.temperature_max_c, found.busy, found.busy_max, found.memory_max_mib) == (70, 0.65, 0.8, 2000)
    assert found.clock_events == {"sw_power_cap": 2, "hw_thermal_slowdown": 1}


@pytest.mark.parametrize("times", [range(103, 110), range(95, 107), (103, 104, 105)], ids=["late", "early", "inside"])
def test_energy_is_unknown_if_samples_do_not_enclose_the_load(tmp_path, times):
    (found,) = samples.telemetry([node(tmp_path, [gpu_line(float(t)) for t in times])], WINDOW).gpus
    assert found.energy_j is None and found.power_w == 400.0


@pytest.mark.parametrize(("at", "known"), [(105.0, False), (101.0, True)])
def test_energy_is_unknown_after_a_reset_of_the_counter(tmp_path, at, known):
    lines = [gpu_line(float(t), energy_j=400.0 * (t - at if t >= at else t)) for t in range(99, 109)]
    (found,) = samples.telemetry([node(tmp_path, lines)], WINDOW).gpus
    assert (found.energy_j is not None) is known


def test_value_that_is_never_reported_is_named(tmp_path):
    lines = [gpu_line(float(t), energy_j=None, busy_percent=None) for t in range(100, 109)]
    found = samples.telemetry([node(tmp_path, lines)], WINDOW)
    assert found.gpus[0].not_reported == ("energy_j", "busy_percent")
    assert (found.gpus[0].energy_j, found.energy_j, found.gpus[0].busy_max) == (None, None, None)


def test_process_of_others_counts_from_two_samples_on(tmp_path):
    lines = [gpu_line(float(t), foreign=[7] if t in (103, 105) else [8] if t == 104 else [9], unattributed=t % 2) for t in range(100, 109)]
    (found,) = samples.telemetry([node(tmp_path, lines)], WINDOW).gpus
    assert (found.foreign_processes, found.unattributed_processes) == ((7,), 1)


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([100.0, 101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0], 1.0),
        ([102.0, 103.0, 106.2, 107.0], 3.2),
        ([102.0, 103.0], 5.2),  # until the files were read
        ([105.0, 106.0, 107.0], 5.0),  # since the client was started
        ([], 8.2),
        ([98.0, 99.0, 102.0, 104.0, 106.0, 107.0], 2.0),  # the gap before it is another point's
    ],
)
def test_longest_gap_is_measured_where_it_touches_the_load(tmp_path, times, gap):
    (found,) = samples.telemetry([node(tmp_path, [gpu_line(t) for t in times])], WINDOW).nodes
    assert found.longest_gap_s == pytest.approx(gap)


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"node": "gn01"}'])
def test_node_without_file_has_a_gap(tmp_path, text):
    path = tmp_path / "gn01.jsonl"
    if text is not None:
        path.write_text(text)
    (found,) = samples.telemetry([samples.read("gn01", path)], WINDOW).nodes
    assert (found.node, found.samples, found.fault) == ("gn01", 0, None) and found.longest_gap_s == pytest.approx(8.2)


def test_fault_of_a_node_is_no_gap(tmp_path):
    (found,) = samples.telemetry([node(tmp_path, [], (), fault="no driver")], WINDOW).nodes
    assert (found.fault, found.longest_gap_s, found.gpus) == ("no driver", 0.0, ())


def test_torn_line_is_left_out(tmp_path):
    read = node(tmp_path, [gpu_line(103.0)])
    with (tmp_path / "gn01.jsonl").open("a") as stream:
        stream.write('{"t":104.0,"gpus":[[400.\n' + json.dumps(gpu_line(105.0)) + "\n" + '{"t":106.0')
    assert list(samples.read("gn01", tmp_path / "gn01.jsonl").times) == [103.0, 105.0] and len(read.times) == 1


def test_load_of_others_is_all_load_without_own(tmp_path):
    lines = [{"t": 102.0 + n, "busy_s": 5.0 * n, "own_s": 3.0 * n, "mhz": 2000.0 + n} for n in range(6)]
    (found,) = samples.telemetry([cpu_node(tmp_path, lines)], WINDOW).nodes
    assert (found.cores, found.busy_cores, found.foreign_cores, found.cpu_mhz) == (8, 5.0, 2.0, 2002.5)
    assert samples.telemetry([cpu_node(tmp_path, lines[1:])], WINDOW).foreign_cores is None, "the beginning is not known"


def test_energy_of_nodes_is_added_only_if_all_is_known(tmp_path):
    two = node(tmp_path, [gpu_line(float(t)) for t in range(100, 109)])
    assert samples.telemetry([two, two], WINDOW).energy_j == pytest.approx(2 * 400.0 * 4)
    silent = samples.read("gn02", tmp_path / "none")
    assert samples.telemetry([two, silent], WINDOW).energy_j is None


def test_clock_is_mean_of_gpus_with_ranks(tmp_path):
    lines = [{"t": float(t), "gpus": [gpu_line(float(t), sm_mhz=1800.0)["gpus"][0], gpu_line(float(t), sm_mhz=200.0)["gpus"][0]]}
             for t in range(100, 109)]  # fmt: skip
    read = node(tmp_path, lines, (GPU, GPU | {"position": 1, "replica": None}))
    assert samples.telemetry([read], WINDOW).sm_clock_mhz == 1800.0
    timeline = samples.timeline([read], 100.0, 106.5)
    assert timeline is not None and set(timeline.power_w) == {800.0} and set(timeline.sm_clock_mhz) == {1800.0}


def test_timeline_interpolates_at_whole_seconds_and_leaves_gaps(tmp_path):
    lines = [gpu_line(99.5, power_w=100.0), gpu_line(100.5, power_w=300.0), gpu_line(106.5, power_w=500.0)]
    found = samples.timeline([node(tmp_path, lines)], 100.0, 106.2)
    assert found is not None and found.seconds == (0, 1, 2, 3, 4, 5, 6, 7)
    # Interpolated within two seconds of a sample.
    assert [value if value is None else round(value) for value in found.power_w] == [200, 317, 350, None, None, 450, 483, 500]
    lines = [{"t": 100.0 + n, "busy_s": 2.0 * n, "own_s": 1.5 * n, "mhz": None} for n in range(4)]
    found = samples.timeline([cpu_node(tmp_path, lines)], 100.0, 103.0)
    assert found is not None and found.foreign_cores == (0.5, 0.5, 0.5, 0.5) and found.power_w == ()
    assert samples.timeline([samples.read("gn02", tmp_path / "none")], 100.0, 103.0) is None
