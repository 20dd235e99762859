"""The cluster section of the report: nodes and roles, fabric, replicas, jobs. A laptop has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data, report_data_cluster
from builders.report_document import Document
from servemark import records
from servemark.report import charts, formatting, views
from servemark.report.page import render
from servemark.report.table import aggregate, rows, tidy


class Cells(Document):
    """A document whose text has a space between cells and between paragraphs."""

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, attributes)
        if tag in ("td", "th", "dt", "dd", "p"):
            self.text += " "


@pytest.fixture(scope="module")
def page():
    return Cells(render(report_data_cluster.two_nodes()))


def plain(text):
    return text.replace("\u00a0", " ")


def test_roles_name_replicas_devices_head_router_and_client():
    four, spanning = report_data_cluster.replicated_startup("a"), report_data_cluster.spanning_startup("b")
    assert [views.roles(four, index) for index in range(3)] == [
        ["r0: devices 0\u20131", "r1: devices 2\u20133", "router"],
        ["r2: devices 0\u20131", "r3: devices 2\u20133"],
        ["client"],
    ]
    assert [views.roles(spanning, index) for index in range(3)] == [
        ["server, head: devices 0\u20133"],
        ["server: devices 0\u20133"],
        ["client"],
    ]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((), "no device"),
        ((3,), "device 3"),
        ((2, 3), "devices 2\u20133"),
        ((0, 2), "devices 0, 2"),
    ],
)
def test_consecutive_devices_are_shown_as_range(devices, said):
    placement = (records.Replica(name="r0", parts=(records.Part(node=0, devices=devices),)),)
    one = report_data.startup("x", nodes=report_data_cluster.GPU_NODES[:1], placement=placement)
    assert views.roles(one, 0) == [f"server: {said}"]


MEASURED = {"needed": True, "backend": "gloo", "ranks": 2, "bytes": 4 * 2**20, "seconds": 0.004, "bus_gib_per_s": 0.977}
FAILURE = records.Failure(stage="check_fabric", reason="fabric_failed", detail="x")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"needed": True, "failure": FAILURE}, ("fabric_failed",)),
        (MEASURED, ("4.00 MiB", "2 ranks", "(gloo)", "0.977 GiB/s", "4.00 ms")),
        (MEASURED | {"interfaces": ("a: eth0", "b: eth0"), "transport": ("via NET/Socket/0",)}, ("a: eth0; b: eth0", "via NET/Socket/0")),
    ],
)
def test_fabric_check_shows_its_result(changes, shown):
    data = report_data_cluster.two_nodes()
    checks = data.fabrics | {"tp2-x4": records.Fabric(deployment="tp2-x4", **changes)}
    text = plain(Cells(render(replace(data, fabrics=checks), bundle="")).words)
    assert all(value in text for value in shown)


def test_slow_transport_faster_interface_and_ray_state_are_shown():
    data = report_data_cluster.two_nodes()
    startup = data.startups["tp2-x4"]
    fast = records.Interface(name="hsn7", address="10.0.0.7", speed_mbit=200_000)
    nodes = tuple(node.model_copy(update={"faster": (fast,)}) for node in startup.nodes)
    ray = records.RayState(replica="r0", total={"GPU": 8, "CPU": 64}, free={"GPU": 3}, waiting=("{'GPU': 9}",), failed=("10.9.9.9",))
    startups = data.startups | {"tp2-x4": startup.model_copy(update={"nodes": nodes, "ray_states": (ray,)})}
    checks = data.fabrics | {"tp2-x4": records.Fabric(deployment="tp2-x4", **MEASURED, slow="NCCL uses TCP")}
    text = plain(Cells(render(replace(data, fabrics=checks, startups=startups), bundle="")).words)
    for value in ("NCCL uses TCP", "hsn7", "200 Gbit/s", "3 of 8 GPU free", "10.9.9.9", "{'GPU': 9}"):
        assert value in text, value


def test_fabric_check_that_did_not_run_shows_no_result():
    data = report_data_cluster.two_nodes()
    states = [{}, {"replay": True}, MEASURED | {"replay": True}]
    pages = [
        render(replace(data, fabrics={"tp2-x4": records.Fabric(deployment="tp2-x4", **state)}), bundle="") for state in (*states, MEASURED)
    ]
    assert ["0.977" in page for page in pages] == [False, False, False, True] and pages[0] != pages[1] == pages[2]


@pytest.mark.parametrize(
    ("counts", "imbalance"),
    [
        ({"r0": 9, "r1": 9}, 1.0),
        ({"r0": 12, "r1": 6}, 4 / 3),
        ({"r0": 18, "r1": 0, "r2": 0}, 3.0),
        ({"r0": 9}, None),
        ({"r0": 0, "r1": 0}, None),
        ({}, None),
    ],
)
def test_imbalance_is_the_most_over_the_mean(counts, imbalance):
    data = replace(report_data.demo(), measurements=[report_data.measurement(replica_requests=counts)])
    found = views.balance(data)
    assert [row["imbalance"] for row in found] == ([] if imbalance is None else [pytest.approx(imbalance)])


def test_direct_load_of_one_replica_has_no_balance():
    items = [report_data.measurement(replica_requests={"r0": 9, "r1": 0}, ask="replica")]
    assert views.balance(replace(report_data.demo(), measurements=items)) == []


def test_balance_excludes_invalid_points_and_sorts_replicas():
    counts = {f"r{number}": 1 for number in (10, 2, 0)}
    data = replace(
        report_data.demo(),
        measurements=[report_data.measurement(replica_requests=counts), report_data.invalid(replica_requests=counts)],
    )
    (row,) = views.balance(data)
    assert list(row["counts"]) == ["r0", "r2", "r10"]


def test_gpu_hours_of_jobs_and_used_share_are_shown(page):
    hours = {row[1]: row[9] for row in page.cells("cluster") if len(row) == 11}
    assert hours == {"48211": formatting.number(411 * 8 / 3600), "48211 start 2": formatting.number(1425 * 8 / 3600), "48213": "\u2013"} | {
        "48212": formatting.number(1425 * 8 / 3600)
    }
    assert f"({round(100 * 2.41 / ((411 + 1425) * 8 / 3600))} %)" in page.words and page.words.count(" %)") == 2


@pytest.mark.parametrize(
    "row",
    [
        "node1 r0: devices 0\u20131 r1: devices 2\u20133 router 10.20.0.1 hsn0 4 72 857 vLLM 0.25.1, Ray 2.56.1, Python 3.12.3",
        "4 devices, Ray 2.56.1, Python 3.12.3",
        "Using network AWS Libfabric; via P2P/CUMEM; via NET/AWS Libfabric/0/GDRDMA",
        "tp2-x4 r3 node2 30.5 19.7 16.6 88.0",
        "tp2-x4 chat concurrency 64 1 r0 10 r1 9 r2 9 r3 8 1.11",
        "48211 NODE_FAIL exit 1:0 client1, node1, node2 workq, proj042, normal 0:21:38 0:06:51 1:00:00 8 0.913 sacct",
        "48211 start 2 COMPLETED",
    ],
)
def test_report_of_two_nodes_has_the_row(page, row):
    assert row in page.words


@pytest.mark.parametrize("value", ["256 MiB", "21.6 GiB/s", "20.3 ms", "4.08", "2.41", "(59 %)", "sacct: Unable to contact", "6 008"])
def test_report_of_two_nodes_has_the_value(page, value):
    assert value in plain(page.words)


def test_every_table_has_label_and_header_scope(page):
    regions = [attributes for tag, attributes in page.tags if attributes.get("role") == "region"]
    assert len(regions) > 12 and all(attributes["aria-label"] for attributes in regions)
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


@pytest.mark.parametrize("build", [report_data.demo, report_data.troubled])
def test_laptop_report_has_no_cluster_section(build):
    base = build()
    node = report_data_cluster.GPU_NODES[0].model_copy(update={"name": "node01", "devices": 2})
    placement = (records.Replica(name="r0", parts=(records.Part(node=0, devices=(0, 1)),)),)
    laptop = replace(
        base,
        startups={
            name: startup.model_copy(update={"nodes": (node,), "placement": placement, "client_node": "node01"})
            for name, startup in base.startups.items()
        },
        fabrics={name: records.Fabric(deployment=name) for name in base.plans},
        accounts={name: records.Accounting(deployment=name, scheduler="none") for name in base.plans},
        measurements=[item.model_copy(update={"replica_requests": {"r0": 36}}) for item in base.measurements],
    )
    assert render(laptop) == render(base)
    assert 'id="cluster"' not in render(base) and "per device" not in render(base)


def test_single_slurm_node_shows_node_and_job():
    base = report_data_cluster.two_nodes()
    one = replace(base, plans={"plain": base.plans["plain"]}, config={}, measurements=[], fabrics={})
    one = replace(one, startups={"plain": base.startups["plain"]}, accounts={"plain": base.accounts["plain"]})
    (place,) = views.places(one)
    assert place["fabric"] is None and place["nodes"][0]["roles"] == ["server: device 0", "client"]
    assert "48213" in Document(render(one)).words


def test_failed_deployment_keeps_its_nodes():
    failure = records.Failure(stage="await_ready", reason="server_exited", detail="It ended.")
    base = report_data_cluster.two_nodes()
    failed = report_data_cluster.spanning_startup("tp4-pp2-ray").model_copy(
        update={"failure": failure, "phases": (), "seconds_to_health": None, "seconds_to_first_token": None}
    )
    text = Document(render(replace(base, startups={"tp4-pp2-ray": failed}))).words
    assert "devices 0\u20133" in text and "server_exited" in text


def test_hostile_node_and_job_names_are_escaped():
    base = report_data_cluster.two_nodes()
    node = report_data_cluster.GPU_NODES[0].model_copy(update={"name": report_data.HOSTILE, "interface": report_data.HOSTILE})
    startup = base.startups["tp2-x4"]
    hostile = startup.model_copy(update={"nodes": (node, *startup.nodes[1:])})
    account = report_data_cluster.accounting("tp2-x4", report_data_cluster.job("tp2-x4", report_data.HOSTILE), used=1.0)
    document = Document(render(replace(base, startups={"tp2-x4": hostile}, accounts={"tp2-x4": account})))
    assert "img" not in {tag for tag, _ in document.tags}
    assert report_data.HOSTILE in document.text


@pytest.mark.parametrize(
    ("names", "accelerator", "offered"),
    [
        (("tp4-pp2-ray", "tp2-x4", "plain"), "cuda", True),
        (("tp4-pp2-ray", "tp2-x4"), "cuda", False),
        (("tp4-pp2-ray", "plain"), "cpu", False),
    ],
)
def test_throughput_per_device_is_offered_if_gpu_counts_differ(names, accelerator, offered):
    measured = [item for item in report_data_cluster.two_nodes().measurements if item.deployment in names]
    frame = rows(tidy(measured))
    titles = charts.throughputs(frame, accelerator)
    assert (charts.PER_DEVICE in titles) == offered
    (panel,) = charts.panels(frame, sorted(names), tuple(titles))
    values = panel.values["throughput"]
    if offered:
        best = next(value for value in values if value["deployment"] == "tp2-x4")
        assert best[charts.PER_DEVICE] == pytest.approx(best["output_tokens_per_s"] / 8)
    else:
        assert charts.PER_DEVICE not in values[0]


def test_rows_without_topology_offer_no_result_per_device():
    items = [report_data.measurement("tp2-x4"), report_data.measurement("plain", key_parts={})]
    assert charts.throughputs(rows(tidy(items)), "cuda") == charts.THROUGHPUTS


def test_headline_shows_per_device_only_if_gpu_counts_differ():
    data = report_data_cluster.two_nodes()
    points = views.medians(aggregate(tidy(data.measurements)))
    (group,) = views.headlines(points, data)
    assert {card["deployment"]: card["devices"] for card in group["cards"]} == {
        "plain": 1,
        "tp2-x4": 8,
        "tp4-pp2-ray": 8,
    }
    assert all(card["per_device"] == card["best"]["output_tokens_per_s_median"] / card["devices"] for card in group["cards"])
    same = replace(data, plans={name: data.plans[name] for name in ("tp2-x4", "tp4-pp2-ray")})
    assert all(card["per_device"] is None for card in views.headlines(points, same)[0]["cards"])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0:00:00"), (1298.4, "0:21:38"), (90061, "25:01:01"), (None, "\u2013"), (float("inf"), "\u2013")],
)
def test_job_times_are_hours_minutes_seconds(seconds, said):
    assert formatting.clock(seconds) == said
