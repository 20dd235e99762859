"""Values that change the ledger key, and values that do not."""

import json

import pytest

from builders.loads import UnevenPrompts, load
from servemark.measurement.key import FORMAT, deployment_parts, digest, hardware_part, normalise_options, point_parts
from servemark.records import Gpu, Hardware, Interface, LoadPoint, RandomPrompts, Topology

HARDWARE = {
    "accelerator": "cuda", "host": "node1", "cpu_model": "Grace", "cpu_count": 72, "cpus_online": 72, "memory_gib": 480.0,
    "node_model": "XE9680",
    "shm_gib": 240.0, "architecture": "aarch64", "kernel": "5.14.21", "os": "SLES 15", "glibc": "2.31",
    "gpus": tuple(
        Gpu(name="GH200 120GB", memory_mib=97871, uuid=f"GPU-{n}", index=n, power_limit_w=900.0, ecc=True, mig=False, nvlinks=18)
        for n in range(2)
    ),
    "driver": "580.159.04", "cuda": "13.0", "gpu_topology": "\tGPU0\tGPU1\nGPU0\t X \tNV6\nGPU1\tNV6\t X \n", "nofile": 1024, "nproc": 4096,
    "interfaces": (Interface(name="hsn0", address="10.0.0.1"),), "probed_at": "2026-11-20T12:00:00Z",
}  # fmt: skip
DEPLOYMENT = {
    "model_digest": "m1",
    "environment_digest": "e1",
    "topology": Topology(nodes=2, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, executor="ray"),
    "options": {"max-model-len": 512, "enforce-eager": True, "port": 8000},
    "variables": {"NCCL_SOCKET_IFNAME": "hsn0", "VLLM_HOST_IP": "10.0.0.1"},
}
LOAD = {
    "input_tokens": 64, "output_tokens": 32, "requests": 32, "warmups": 3, "warmup_tokens": 32,
    "client_options": {"burstiness": 1}, "concurrency": 4, "repetition": 1, "seed": 7,
}  # fmt: skip


def key(hardware=None, point=None, **deployment):
    parts = deployment_parts(**{**DEPLOYMENT, **deployment}, hardware=Hardware(**{**HARDWARE, **(hardware or {})}))
    return digest(parts, point_parts(load(**{**LOAD, **(point or {})})))


def option(**changes):
    return {"options": {**DEPLOYMENT["options"], **{name.replace("_", "-"): value for name, value in changes.items()}}}


def variable(**changes):
    return {"variables": {**DEPLOYMENT["variables"], **changes}}


def topology(**changes):
    return {"topology": DEPLOYMENT["topology"].model_copy(update=changes)}


def gpus(count=2, **changes):
    """The GPUs of the node, ``count`` of them, the last one with these changes."""
    *others, last = (HARDWARE["gpus"] * 4)[:count]
    return {"hardware": {"gpus": (*others, last.model_copy(update=changes))}}


BIG = Gpu(name="H200", memory_mib=143771)


@pytest.mark.parametrize(
    "change",
    [
        {"model_digest": "m2"},
        {"environment_digest": "e2"},
        *(topology(**{name: 4}) for name in Topology.model_fields if name not in ("executor", "client")),
        topology(executor="mp"),
        topology(client="own"),
        {"modules": ("brics/nccl",)},
        {"interface": "hsn0"},
        option(max_model_len=1024),
        option(enforce_eager=False),
        option(dtype="bfloat16"),
        option(enforce_eager="true"),
        option(chat_template="/a/b.jinja"),
        {"options": {}},
        variable(NCCL_SOCKET_IFNAME="eth0"),
        variable(VLLM_ATTENTION_BACKEND="FLASHINFER"),
        variable(LD_LIBRARY_PATH="/opt/nccl/lib"),
        variable(NCCL_TOPO_FILE="/opt/topo.xml"),
        variable(VLLM_MODEL_REDIRECT_PATH="/other"),
        variable(VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE="1"),
        {"variables": {}},
        {"hardware": {"accelerator": "cpu"}},
        {"hardware": {"gpus": (BIG, BIG)}},
        gpus(power_limit_w=700.0),
        gpus(ecc=False),
        gpus(mig=True),
        gpus(nvlinks=17),
        {"hardware": {"gpu_topology": HARDWARE["gpu_topology"].replace("NV6", "SYS")}},
        {"hardware": {"gpu_topology": None}},
        {"hardware": {"kernel": "5.14.22"}},
        {"hardware": {"glibc": "2.40"}},
        {"hardware": {"node_model": "XE8545"}},
        {"hardware": {"cpus_online": 144}},
        {"hardware": {"cpu_count": 11}},
        {"hardware": {"gpus": tuple(g.model_copy(update={"memory_mib": 1}) for g in HARDWARE["gpus"])}},
        {"hardware": {"driver": "570.1"}},
        {"hardware": {"cpu_model": "EPYC"}},
        {"hardware": {"architecture": "x86_64"}},
        {"point": {"prompts": UnevenPrompts(dataset="random", input_tokens=64, output_tokens=32)}},
        {"point": {"input_tokens": 65}},
        {"point": {"output_tokens": 33}},
        {"point": {"requests": 33}},
        {"point": {"warmups": 0}},
        {"point": {"warmup_tokens": 16}},
        {"point": {"client_options": {"burstiness": 2}}},
        {"point": {"clients": 2}},
        {"point": {"ask": "replica"}},
        {"point": {"api": "chat"}},
        {"point": {"concurrency": 8}},
        {"point": {"concurrency": None, "request_rate": 4.0}},
        {"point": {"request_rate": 4.5}},
        {"point": {"repetition": 2}},
        {"point": {"seed": 8}},
    ],
    ids=str,
)
def test_value_that_decides_results_changes_the_key(change):
    assert key(**change) != key()


@pytest.mark.parametrize(
    "change",
    [
        option(port=8001),
        option(host="10.0.0.2"),
        option(download_dir="/scratch/a"),
        option(api_key="s3cret"),
        option(served_model_name="other"),
        option(master_addr="10.0.0.9", master_port=29600),
        {"options": {"enforce_eager": True, "--max-model-len": "512"}},
        variable(VLLM_HOST_IP="10.0.0.2"),
        variable(VLLM_CACHE_ROOT="/scratch/a"),
        variable(TRITON_CACHE_DIR="/tmp/job-42"),
        variable(HF_HOME="/scratch/hf"),
        variable(HF_HUB_CACHE="/scratch/hub"),
        variable(VLLM_LOGGING_CONFIG_PATH="/a.json"),
        variable(SSL_CERT_FILE="/a.pem"),
        variable(MASTER_PORT="29600", VLLM_PORT="2", MASTER_ADDR="10.0.0.2"),
        variable(VLLM_RAY_DP_PLACEMENT_NODE_IPS="10.0.0.1,10.0.0.2"),
        variable(SLURM_JOB_ID="42", SLURM_JOB_NODELIST="n[1-2]"),
        variable(HOSTNAME="n1", USER="me", TMPDIR="/tmp/42", RAY_TMPDIR="/tmp/r"),
        variable(HF_TOKEN="t", VLLM_API_KEY="k"),
        {"hardware": {"host": "node2"}},
        {"hardware": {"cpu_count": 71}},
        {"hardware": {"cpu_count": 12}},
        {"hardware": {"memory_gib": 479.9}},
        {"hardware": {"shm_gib": 1.0}},
        {"hardware": {"os": "other"}},
        {"hardware": {"probed_at": "2027-01-01T00:00:00Z"}},
        {"hardware": {"interfaces": (Interface(name="hsn0", address="10.0.0.2"),)}},
        {"hardware": {"gpus": tuple(g.model_copy(update={"uuid": "GPU-9"}) for g in HARDWARE["gpus"])}},
        {"hardware": {"nofile": 1, "nproc": 1}},
        gpus(4),
        {"point": {"name": "other-c4-r1"}},
        {"point": {"workload": "renamed"}},
    ],
    ids=str,
)
def test_place_time_and_names_do_not_change_the_key(change):
    assert key(**change) == key()


def test_order_does_not_change_the_key():
    shuffled = {
        "options": dict(reversed(DEPLOYMENT["options"].items())),
        "variables": dict(reversed(DEPLOYMENT["variables"].items())),
        "point": {"client_options": {"b": 1, "a": 2}},
    }
    assert key(**shuffled) == key(point={"client_options": {"a": 2, "b": 1}})
    mixed = (BIG, HARDWARE["gpus"][0])
    assert key(hardware={"gpus": mixed, "gpu_topology": None}) == key(hardware={"gpus": mixed[::-1], "gpu_topology": None})


ONE = topology(nodes=1, devices_per_node=1, tensor_parallel=1, pipeline_parallel=1, executor="single")


def test_gpus_and_links_that_are_not_in_use_do_not_count():
    alone = key(hardware={"gpus": HARDWARE["gpus"][:1], "gpu_topology": None}, **ONE)
    assert alone == key(**ONE) == key(**gpus(4), **ONE) == key(hardware={"gpus": HARDWARE["gpus"][1:]}, **ONE)
    links = tuple(gpu.model_copy(update={"nvlinks": 0}) for gpu in HARDWARE["gpus"])
    assert alone == key(hardware={"gpus": links}, **ONE)


def test_all_gpus_of_a_node_with_several_kinds_count():
    mixed = (*HARDWARE["gpus"], BIG)
    assert key(hardware={"gpus": mixed}) != key() != key(hardware={"gpus": (*mixed, BIG)}) != key(hardware={"gpus": mixed})


@pytest.mark.parametrize(("accelerator", "devices", "seen", "same"), [
    ("cpu", 1, 71, False),
    ("cuda", 1, 8, True),
    ("cuda", 1, 7, False),
    ("cuda", 4, 20, True),
    ("cuda", 4, 19, False),
])  # fmt: skip
def test_usable_cpus_count_on_cpus_or_if_servers_are_short_of_them(accelerator, devices, seen, same):
    part = hardware_part(Hardware(**HARDWARE | {"accelerator": accelerator}), devices)
    assert (part == hardware_part(Hardware(**HARDWARE | {"accelerator": accelerator, "cpu_count": seen}), devices)) is same


def test_format_is_in_the_key_and_older_keys_can_be_recomputed():
    parts = deployment_parts(**DEPLOYMENT, hardware=Hardware(**HARDWARE)), point_parts(load(**LOAD))
    assert digest(*parts) == digest(*parts, format=FORMAT) != digest(*parts, format=2)


def test_each_hardware_field_is_in_the_key_or_known_to_be_absent():
    outside = {"host", "memory_gib", "shm_gib", "os", "cuda", "interfaces", "nofile", "nproc", "probed_at", "hidden_gpus",
               "cuda_visible_devices", "worked_out"}  # fmt: skip
    made = {"gpu_topology": "gpu_links", "cpus_online": "cpu_count"}
    inside = deployment_parts(**DEPLOYMENT, hardware=Hardware(**HARDWARE))["hardware"]
    assert {made.get(name, name) for name in Hardware.model_fields} - outside == inside.keys() - {"nvlinks"}
    assert set(Gpu.model_fields) == {"name", "memory_mib", "power_limit_w", "ecc", "mig", "nvlinks", "uuid", "index"}


def test_each_load_point_field_but_names_is_in_the_key():
    parts = point_parts(load(**LOAD, clients=2, ask="replica", api="chat", ramp_up_s=1.0, sending_s=9.0, restart=1))
    flat = {*parts, *parts["workload"], *parts["load"], "prompts", "client_options"}
    # The tokens of the chat template follow from the model and the deployment's options.
    assert set(LoadPoint.model_fields) - flat == {"name", "template_tokens"}
    assert set(RandomPrompts.model_fields) <= parts["workload"].keys()


def test_nested_options_keep_their_meaning():
    assert normalise_options({"compilation-config": {"level": 3}})["compilation-config"] == {"level": 3}
    assert normalise_options({"middleware": ["b", 1]})["middleware"] == ["b", "1"]
    assert key(**option(middleware=["a", "b"])) != key(**option(middleware=["b", "a"]))


def test_spellings_of_a_rate_give_one_key():
    assert key(point={"request_rate": 4}) == key(point={"request_rate": 4.0})
    assert key(point={"request_rate": float("inf")}) != key(point={"request_rate": None})


def test_two_spellings_of_an_option_need_one_value():
    assert normalise_options({"max_model_len": 5, "max-model-len": "5"}) == {"max-model-len": "5"}
    with pytest.raises(ValueError, match="max-model-len"):
        normalise_options({"max_model_len": 5, "max-model-len": 6})


def test_key_parts_have_no_secret_or_place_and_survive_json():
    deployment = deployment_parts(
        **{**DEPLOYMENT, **variable(VLLM_API_KEY="s3cret", HF_HOME="/scratch/x"), **option(api_key="s3cret", port=1)},
        hardware=Hardware(**HARDWARE),
    )
    point = point_parts(load(**LOAD))
    text = json.dumps({"deployment": deployment, "point": point})
    assert "s3cret" not in text
    assert "/scratch" not in text
    again = json.loads(text)
    assert digest(again["deployment"], again["point"]) == digest(deployment, point)


def test_a_key_is_64_hex_digits_and_nan_is_refused():
    assert len(key()) == 64
    assert int(key(), 16) > 0
    with pytest.raises(ValueError, match="JSON"):
        digest({"a": float("nan")}, {})
