"""The choices of a cluster file: partition, account, modules, network, cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from builders.recorded_site import NODES, PARTITIONS, SACCTMGR
from servemark.init import site, slurm
from servemark.init.machine import Disk, Machine, Network
from servemark.init.slurm import Account, NodeKind, Partition, Slurm
from servemark.init.terminal import Defaults

GPU, CPU = NodeKind(4, "h100", 64, 512_000), NodeKind(0, None, 64, 256_000)
ACCOUNTS = slurm.parse_sacctmgr(SACCTMGR)
BIG = 2**40


def partition(name, kind=GPU, nodes=4, **more):
    return Partition(name, kinds=Counter({kind: nodes}), nodes=frozenset({f"{name}{n}" for n in range(nodes)}), **more)


def machine(tmp_path, **more):
    facts = {"host": "login1", "hardware": None, "networks": (), "disks": (), "checkout": Disk("this checkout", tmp_path, "nfs", BIG)}
    return Machine(**facts | {"modules": ()} | more)


def choose(facts, slurm_facts):
    return site.choose("here", slurm_facts, facts, Defaults())


def test_recorded_site_gives_partition_account_and_node(tmp_path):
    made = choose(machine(tmp_path), Slurm("sandbox", slurm.parse_partitions(PARTITIONS, NODES), ACCOUNTS))
    assert made.partition and (made.partition.name, made.gpus, made.max_minutes) == ("batch", 4, 60)
    assert made.account and made.account.name == "research" and set(made.accounts) == {"teaching", "root"}
    assert [one.name for one in made.partitions] == ["mixed", "short", "client"]
    assert (made.network, made.modules, made.cache) == (None, (), None)


@pytest.mark.parametrize(
    ("others", "best"),
    [
        ([partition("cpu", CPU, default=True)], "gpu"),
        ([partition("debug", limit_min=20.0, default=True)], "gpu"),
        ([partition("main", default=True)], "main"),
        ([partition("large", nodes=99)], "large"),
        ([partition("off", nodes=99, up=False)], "gpu"),
        ([partition("theirs", nodes=99, groups=("nobody-has-this-group",))], "gpu"),
        ([partition("bought", nodes=99, accounts=("other",))], "gpu"),
        ([partition("closed", nodes=99, denied=("research", "root", "teaching"))], "gpu"),
        ([partition("admin", nodes=99, root_only=True)], "gpu"),
    ],
)
def test_partition_with_gpus_that_this_user_may_use_is_chosen(monkeypatch, others, best):
    monkeypatch.setattr(site.os, "geteuid", lambda: 1000)
    assert site.usable([partition("gpu"), *others], {"me"}, ACCOUNTS)[0].name == best


def test_account_is_one_that_the_partition_takes(tmp_path):
    accounts = (Account("home", "cpu", default=True), Account("guest"), Account("paid"))
    made = choose(machine(tmp_path), Slurm("x", (partition("gpu", denied=("guest",)),), accounts))
    assert made.account and (made.account.name, made.accounts) == ("paid", ())


def test_nothing_is_chosen_where_slurm_lists_nothing(tmp_path):
    made = choose(machine(tmp_path), Slurm("x", (), ()))
    assert (made.partition, made.account, made.kind, made.gpus, made.max_minutes) == (None, None, None, 0, None)


def test_cache_is_a_folder_with_room_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setattr(site.getpass, "getuser", lambda: "ann")
    small, own = Disk("$PROJECT", tmp_path / "p", "lustre", 2**30), Disk("$SCRATCH", tmp_path, "lustre", BIG)
    made = choose(machine(tmp_path, disks=(small, own)), Slurm("x", (), ()))
    assert (made.cache, made.cache_disk, made.disks) == (tmp_path / "servemark-cache", own, (small,))
    everyones = Disk("$PROJECT", Path("/"), "lustre", BIG)
    monkeypatch.setattr(site.os, "getuid", lambda: 4711)
    made = choose(machine(tmp_path, disks=(everyones,)), Slurm("x", (), ()))
    assert made.cache == Path("/ann/servemark-cache")


def test_modules_of_slurm_and_python_are_left_out(tmp_path):
    made = choose(machine(tmp_path, modules=("slurm/23", "Python/3.11", "gcc/13.2", "bad name", "brics/nccl")), Slurm("x", (), ()))
    assert made.modules == ("gcc/13.2", "brics/nccl")


@pytest.mark.parametrize(("host", "network"), [("gpu1", "hsn0"), ("gpu1.site.org", "hsn0"), ("login1", None)])
def test_network_is_known_on_a_node_of_the_partition_only(tmp_path, host, network):
    networks = (Network("hsn0", "10.0.0.1", up=True, speed_mbit=200_000), Network("eth0", "10.1.0.1", up=True, speed_mbit=1000))
    made = choose(machine(tmp_path, host=host, networks=networks), Slurm("x", (partition("gpu"),), ()))
    assert (made.network and made.network.name) == network


def test_other_kinds_of_gpus_are_kept_for_the_comment(tmp_path):
    other = NodeKind(8, "a100", 64, 512_000)
    mixed = Partition("gpu", kinds=Counter({GPU: 9, other: 2, CPU: 50}))
    made = choose(machine(tmp_path), Slurm("x", (mixed,), ()))
    assert made.kind == GPU and made.kinds == (other,)
