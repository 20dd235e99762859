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
from servemark.records.inputs import Environment, EnvironmentCheck, Gpu, Hardware, Interface, KernelTools, Manifest, ModelFile, Sources
from servemark.records.load_point import LoadPoint
from servemark.records.measurement import Accounting, Check, JobAccount, Measurement, Reason, Summary
from servemark.records.plan import Estimate, Plan, PlannedPoint, Plans, record_files
from servemark.records.timeline import ServerTimeline, Timeline
from servemark.records.topology import Topology
from servemark.records.workload import AnyPrompts, Prompts, RandomPrompts

ALL_RECORDS = tuple(kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Record) and kind.KIND)

__all__ = [
    "ALL_RECORDS", "Accounting", "AnyPrompts", "Check", "Cluster", "DaemonState", "Endpoint", "EndpointStatus", "Environment",
    "EnvironmentCheck", "Estimate", "Fabric", "Failure", "Gpu", "Hardware", "Held", "Interface", "JobAccount", "KernelTools",
    "LoadPoint", "Manifest", "Measurement", "ModelFile", "Node", "Part", "Plan", "PlannedPoint", "Plans", "Prompts",
    "RandomPrompts", "RayNode", "Ready", "Reason", "Record", "RecordT", "Replica", "ReplicaStartup", "ServerPlace",
    "ServerTimeline", "Sources", "Startup", "StartupPhase", "Stopped", "Strict", "Summary", "Timeline", "Topology", "record_files",
    "utc_now", "write_atomically",
]  # fmt: skip
