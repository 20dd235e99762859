"""Records that one stage writes and another reads: JSON files with ``kind`` and ``version``, typed and written atomically.

Reading a record of another kind or version, or with unknown keys, is an error. A stage checks the content of a record, not only that the
file exists.
"""

from servemark.records.accuracy import Accuracy, AskedCheck, PlannedCheck
from servemark.records.base import Failure, Record, RecordT, Strict, replacing, utc_now, write_atomically
from servemark.records.choice import Topologies, TopologyChoice
from servemark.records.comparison import ComparedMetric, ComparedPoint, ComparedSide, Comparison, Difference, GateResult, OneSided
from servemark.records.counters import EngineCounters, ServerCounters
from servemark.records.dataset import Dataset, DatasetSource, Lengths
from servemark.records.deployment import (
    Cluster,
    DaemonState,
    Endpoint,
    EndpointStatus,
    Fabric,
    Held,
    Node,
    Part,
    RayNode,
    RayState,
    Ready,
    Replica,
    ReplicaStartup,
    ServerPlace,
    Startup,
    StartupPhase,
    Stopped,
)
from servemark.records.inputs import (
    Container,
    Environment,
    EnvironmentCheck,
    FastAdapter,
    Gpu,
    Hardware,
    Interface,
    KernelTools,
    Manifest,
    ModelFile,
    RuntimeName,
    Sources,
)
from servemark.records.load_point import AnyPrompts, LoadPoint, PrefixPrompts, Prompts, RandomPrompts, StagedPrompts
from servemark.records.measurement import (
    Accounting,
    Check,
    JobAccount,
    Measurement,
    Published,
    Reason,
    ServerTimeline,
    Summary,
    Timeline,
)
from servemark.records.options import Argument
from servemark.records.plan import Estimate, Plan, Plans, accuracy_files, read_with_trials, record_files
from servemark.records.search import PlannedPoint, PlannedSearch, Search, SearchTrial
from servemark.records.steady import Steady, SteadyLatency
from servemark.records.telemetry import GpuTelemetry, NodeTelemetry, Telemetry, TelemetryTimeline
from servemark.records.topology import Topology

ALL_RECORDS = tuple(kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Record) and kind.KIND)

__all__ = [
    "ALL_RECORDS", "Accounting", "Accuracy", "AnyPrompts", "Argument", "AskedCheck", "Check", "Cluster", "ComparedMetric", "ComparedPoint",
    "ComparedSide", "Comparison", "Container", "DaemonState", "Dataset", "DatasetSource", "Difference", "Endpoint", "EndpointStatus",
    "EngineCounters", "Environment", "EnvironmentCheck", "Estimate", "Fabric", "Failure", "FastAdapter", "GateResult", "Gpu",
    "GpuTelemetry", "Hardware", "Held", "Interface", "JobAccount", "KernelTools", "Lengths", "LoadPoint", "Manifest", "Measurement",
    "ModelFile", "Node", "NodeTelemetry", "OneSided", "Part", "Plan", "PlannedCheck", "PlannedPoint", "PlannedSearch", "Plans",
    "PrefixPrompts", "Prompts", "Published", "RandomPrompts", "RayNode", "RayState", "Ready", "Reason", "Record", "RecordT", "Replica",
    "ReplicaStartup", "RuntimeName", "Search", "SearchTrial", "ServerCounters", "ServerPlace", "ServerTimeline", "Sources",
    "StagedPrompts", "Startup", "StartupPhase", "Steady", "SteadyLatency", "Stopped", "Strict", "Summary", "Telemetry",
    "TelemetryTimeline", "Timeline", "Topologies", "Topology", "TopologyChoice", "accuracy_files", "read_with_trials", "record_files",
    "replacing", "utc_now", "write_atomically",
]  # fmt: skip
