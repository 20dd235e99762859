"""What a ledger has measured of a model on the same GPUs, by topology."""

from __future__ import annotations

import json

from builders import report_data, report_data_cluster
from servemark.measurement.ledger import RECORD
from servemark.measurement.measured_topologies import sentences


def stored(ledger, name, record, **changes):
    path = ledger / name[:2] / name / RECORD
    path.parent.mkdir(parents=True)
    data = json.loads(record.model_dump_json())
    data["key_parts"]["deployment"] |= changes
    path.write_text(json.dumps(data))


def test_best_rate_of_each_topology_on_the_same_hardware(tmp_path):
    data = report_data_cluster.two_nodes()
    one = next(item for item in data.measurements if item.verdict == "VALID")
    deployment = one.key_parts["deployment"]
    own = {"model": "a" * 64, "hardware": {"gpus": [], "cpu_model": data.hardware.cpu_model}}
    machine = data.hardware.model_copy(update={"gpus": ()})
    two = deployment["topology"] | {"tensor_parallel": 2, "nodes": 1}
    alone = dict.fromkeys(("nodes", "tensor_parallel", "pipeline_parallel", "data_parallel", "replicas"), 1)
    for number, (rate, topology) in enumerate(((10.0, two), (30.0, two), (20.0, alone))):
        stored(tmp_path, f"{number}0" + "b" * 62, one.model_copy(update={"output_throughput": rate}), topology=topology, **own)
    stored(tmp_path, "70" + "b" * 62, one.model_copy(update={"output_throughput": 99.0}), **own | {"model": "c" * 64})
    stored(tmp_path, "80" + "b" * 62, one.model_copy(update={"output_throughput": 99.0}), **own | {"hardware": {"gpus": [["H100"]]}})
    stored(tmp_path, "90" + "b" * 62, report_data.invalid("plain", concurrency=4), **own)
    (tmp_path / "ff" / "broken").mkdir(parents=True)
    (tmp_path / "ff" / "broken" / RECORD).write_text("{" + "a" * 64)
    first, second = sentences(tmp_path, "a" * 64, machine)
    assert "tensor_parallel 2" in first and " 30 " in first and " 20 " in second
    assert sentences(tmp_path / "nowhere", "a" * 64, machine) == ()
