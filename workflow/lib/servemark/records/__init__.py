"""Every record that one stage writes and another reads: typed, versioned, written atomically.

A record is a JSON file with ``kind`` and ``version``. Reading one of another kind, of another version or with unknown
keys is an error: conditions are checked in the record, never assumed from the file's existence.
"""

from servemark.records.base import Failure, Record, RecordT, Strict, utc_now, write_atomically
from servemark.records.deployment import (
    Cluster,
    DaemonState,
    Endpoint,
    Fabric,
    Node,
    Part,
    RayNode,
    Ready,
    Replica,
    ReplicaStartup,
    ServerPlace,
    Startup,
    StartupPhase,
    Stopped,
)
from servemark.records.endpoint import EndpointStatus, Held
from servemark.records.inputs import (
    Environment,
    EnvironmentCheck,
    Gpu,
    Hardware,
    Interface,
    KernelTools,
    Manifest,
    ModelFile,
)
from servemark.records.measurement import Accounting, Check, JobAccount, Measurement, Reason, Summary
from servemark.records.plan import (
    PREFIX,
    Estimate,
    Plan,
    PlannedPoint,
    Plans,
    prefix_tokens,
    prompt_tokens,
    record_files,
)
from servemark.records.run import Sources
from servemark.records.timeline import ServerTimeline, Timeline
from servemark.records.topology import Topology

ALL_RECORDS: tuple[type[Record], ...] = (
    Hardware,
    Environment,
    EnvironmentCheck,
    Manifest,
    Plan,
    Plans,
    Cluster,
    Fabric,
    Endpoint,
    Ready,
    Startup,
    Measurement,
    Stopped,
    EndpointStatus,
    Held,
    Accounting,
    Check,
    Timeline,
    Sources,
)

__all__ = [
    "ALL_RECORDS",
    "PREFIX",
    "Accounting",
    "Check",
    "Cluster",
    "DaemonState",
    "Endpoint",
    "EndpointStatus",
    "Environment",
    "EnvironmentCheck",
    "Estimate",
    "Fabric",
    "Failure",
    "Gpu",
    "Hardware",
    "Held",
    "Interface",
    "JobAccount",
    "KernelTools",
    "Manifest",
    "Measurement",
    "ModelFile",
    "Node",
    "Part",
    "Plan",
    "PlannedPoint",
    "Plans",
    "RayNode",
    "Ready",
    "Reason",
    "Record",
    "RecordT",
    "Replica",
    "ReplicaStartup",
    "ServerPlace",
    "ServerTimeline",
    "Sources",
    "Startup",
    "StartupPhase",
    "Stopped",
    "Strict",
    "Summary",
    "Timeline",
    "Topology",
    "prefix_tokens",
    "prompt_tokens",
    "record_files",
    "utc_now",
    "write_atomically",
]
