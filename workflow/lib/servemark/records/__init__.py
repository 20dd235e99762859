"""Every record that one stage writes and another reads: typed, versioned, written atomically.

A record is a JSON file with ``kind`` and ``version``. Reading one of another kind, of another version or with unknown
keys is an error: conditions are checked in the record, never assumed from the file's existence.
"""

from servemark.records.archived import ArchivedFile, Run, Sources
from servemark.records.base import Failure, Record, RecordT, Strict, utc_now, write_atomically
from servemark.records.given import Environment, EnvironmentCheck, Gpu, Hardware, Interface, Manifest, ModelFile
from servemark.records.held import EndpointStatus, Held
from servemark.records.live import (
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
from servemark.records.measured import Accounting, Check, JobAccount, Measurement, Reason, Summary
from servemark.records.planned import (
    PREFIX,
    Estimate,
    Plan,
    PlannedPoint,
    Plans,
    Topology,
    prefix_tokens,
    prompt_tokens,
)
from servemark.records.watched import ServerTimeline, Timeline

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
    Run,
)

__all__ = [
    "ALL_RECORDS",
    "PREFIX",
    "Accounting",
    "ArchivedFile",
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
    "Run",
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
    "utc_now",
    "write_atomically",
]
