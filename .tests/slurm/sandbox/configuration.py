"""The text of every configuration file, made from the options."""

from __future__ import annotations

from pathlib import Path

from .options import LOGIN, Options

CLUSTER = "sandbox"
# The same in every sandbox, as each has its own network namespaces.
ADDRESSES = {LOGIN: "10.77.0.1", "node1": "10.77.0.11", "node2": "10.77.0.12", "client1": "10.77.0.13"}
LAN_ADDRESSES = {name: address.replace("10.77.", "10.78.") for name, address in ADDRESSES.items() if name != LOGIN}
FABRIC = "hsn0"
LAN = "eth0"


def hosts(options: Options) -> str:
    """Return /etc/hosts of every node."""
    lines = ["127.0.0.1 localhost", *(f"{ADDRESSES[name]} {name}" for name in options.all_nodes)]
    return "\n".join(lines) + "\n"


def gres_conf(options: Options, folder: Path) -> str:
    """Return gres.conf; Slurm takes a GPU's number from the end of its file name."""
    files = f"{folder}/devices/nvidia[0-{options.gpus - 1}]"
    return f"NodeName={','.join(options.gpu_nodes)} Name=gpu File={files}\n"


def cluster_file(options: Options, folder: Path) -> str:
    """Return servemark's cluster file for this sandbox: ``--config cluster=FOLDER/cluster.yaml``.

    vLLM assumes that ranks with the same /dev/shm are on one node. The nodes of a sandbox share it, so ranks on different nodes look
    for each other's socket in VLLM_RPC_BASE_PATH, which therefore is a folder that every node sees.
    """
    return f"""\
scheduler: slurm
partition: batch
gpus_per_node: {options.gpus}
exclusive: true
minutes_to_start: 12
minutes_per_point: 5
scratch: /tmp
small_jobs:
  minutes: 10
# The nodes of the sandbox share /dev/shm. So vLLM puts sockets for ranks of other nodes here too. Real nodes share neither.
variables:
  VLLM_RPC_BASE_PATH: {folder}/sockets
"""


def cgroup_conf() -> str:
    """Return cgroup.conf for a machine with version 1 controllers."""
    return "CgroupPlugin=cgroup/v1\n"


def slurmdbd_conf(folder: Path) -> str:
    """Return slurmdbd.conf; slurmdbd connects to the database by a socket in the login node's /run."""
    return f"""\
DbdHost={LOGIN}
DbdAddr={ADDRESSES[LOGIN]}
SlurmUser=root
AuthType=auth/munge
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile={folder}/log/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
DebugLevel=info
"""


def slurm_conf(options: Options, folder: Path) -> str:
    """Return slurm.conf."""
    return "\n".join((_base(options, folder), _accounting(options), _preemption(options), _nodes(options), ""))


def _base(options: Options, folder: Path) -> str:
    # The intervals are short, so that tests do not wait for the scheduler's next round.
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost={LOGIN}({ADDRESSES[LOGIN]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire={options.requeue_wait}
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
SlurmdParameters=config_overrides
ProctrackType=proctrack/{options.proctrack}
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={options.memory_mb // options.cpus}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=10000,batch_sched_delay=0,bf_interval=1,bf_continue
EnforcePartLimits=ALL
JobRequeue=1
ReturnToService=2
KillWait={options.kill_wait}
SlurmdTimeout={options.slurmd_timeout}
SlurmctldTimeout={options.slurmd_timeout}
InactiveLimit=0
MinJobAge=1800
MessageTimeout=10
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5"""


def _accounting(options: Options) -> str:
    if not options.accounting:
        return "AccountingStorageType=accounting_storage/none"
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={LOGIN}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos,safe"""


def _preemption(options: Options) -> str:
    if not options.preemption:
        return "PreemptType=preempt/none"
    return "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"


def _nodes(options: Options) -> str:
    shape = f"CPUs={options.cpus} Sockets=1 CoresPerSocket={options.cpus} ThreadsPerCore=1 RealMemory={options.memory_mb}"
    lines = []
    for name in options.compute_nodes:
        kind = f"Gres=gpu:{options.gpus} Feature=gpu" if name in options.gpu_nodes else "Feature=cpu"
        lines.append(f"NodeName={name} NodeAddr={ADDRESSES[name]} NodeHostname={name} {shape} {kind}")
    gpu_nodes = ",".join(options.gpu_nodes)
    times = "DefaultTime=10 MaxTime=60"
    # Slurm preempts only between partitions of different tiers; no job preempts one of `batch`.
    keep = " PriorityTier=5 PreemptMode=OFF" if options.preemption else ""
    lines.append(f"PartitionName=batch Nodes={gpu_nodes} Default=YES {times}{keep}")
    lines.append(f"PartitionName=short Nodes={gpu_nodes} DefaultTime=1 MaxTime=2{keep}")
    if options.client_node:
        lines.append(f"PartitionName=client Nodes=client1 {times}{keep}")
        lines.append(f"PartitionName=mixed Nodes={','.join(options.compute_nodes)} {times}{keep}")
    if options.preemption:
        lines.append(f"PartitionName=low-requeue Nodes={gpu_nodes} {times} PriorityTier=1 PreemptMode=REQUEUE")
        lines.append(f"PartitionName=low-cancel Nodes={gpu_nodes} {times} PriorityTier=1 PreemptMode=CANCEL")
        lines.append(f"PartitionName=high Nodes={gpu_nodes} {times} PriorityTier=10 PreemptMode=OFF")
    return "\n".join(lines)
