"""A cluster file, config/clusters/NAME.yaml: what servemark requests from Slurm, and what the nodes of the site need."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from servemark.config.field_types import Flag, Location, Variables, listed, refuse
from servemark.config.reserved import SBATCH_OPTIONS, refusal
from servemark.records import Strict
from servemark.records.base import Count

FOLDER = Path("config/clusters")

# These words become parts of command lines, so they exclude characters with a meaning for a shell or sbatch.
WORD_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$"
CONSTRAINT_PATTERN = r"^[A-Za-z0-9(\[][A-Za-z0-9_.,:+*&|()\[\]-]*$"
MODULE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+/-]*$"
INTERFACE_PATTERN = r"^[A-Za-z0-9*?\[][A-Za-z0-9_.:*?\[\]-]*$"
SCRATCH_PATTERN = r"^[/$][A-Za-z0-9_./${}-]*$"

# The name of a Unix socket has at most 107 bytes (sun_path of unix(7)). Ray's part takes about 67 and servemark's part 20.
SCRATCH_LENGTH = 20


def _sbatch_option(text: str) -> str:
    found = re.fullmatch(r"--([a-z][a-z-]*)(=.+)?", text, re.DOTALL)
    if found is None:
        raise refuse("must be one option of sbatch, `--name` or `--name=value`")
    if why := refusal(found[1], SBATCH_OPTIONS):
        raise refuse(f"is set by servemark: {why}")
    return text


def _interface(text: Any) -> str:
    if isinstance(text, str) and "/" in text:
        try:
            return str(ipaddress.IPv4Network(text, strict=False))
        except ValueError as error:
            raise refuse(f"is not an IPv4 network such as 10.0.0.0/8: {error}") from None
    if not isinstance(text, str) or not re.fullmatch(INTERFACE_PATTERN, text):
        raise refuse("must be an interface `hsn0`, a pattern `hsn*` or an IPv4 network `10.0.0.0/8`")
    return text


def _scratch(text: str) -> str:
    if "$" not in text and len(text) > SCRATCH_LENGTH:
        why = "Ray creates sockets in it, and a socket's name has at most 107 bytes; give a shorter folder, or a link to one"
        raise refuse(f"has more than {SCRATCH_LENGTH} characters: {why}")
    return text


Word = Annotated[str, Field(pattern=WORD_PATTERN)]
Constraint = Annotated[str, Field(pattern=CONSTRAINT_PATTERN)]
Module = Annotated[str, Field(pattern=MODULE_PATTERN)]
SbatchOption = Annotated[str, AfterValidator(_sbatch_option), WithJsonSchema({"type": "string", "pattern": "^--[a-z]"})]
Interface = Annotated[str, PlainValidator(_interface), WithJsonSchema({"type": "string", "minLength": 1})]
NodeFolder = Annotated[str, Field(pattern=SCRATCH_PATTERN)]
Scratch = Annotated[NodeFolder, AfterValidator(_scratch)]
Place = Literal["login", "job"]


class SmallJobs(Strict):
    """The short jobs that examine hardware and environment."""

    partition: Word | None = Field(default=None, description="partition; default the deployments' one")
    account: Word | None = Field(default=None, description="account; default the deployments' one")
    qos: Word | None = Field(default=None, description="quality of service; default the deployments' one")
    minutes: Count = Field(default=15, description="time limit of each, minutes")
    whole_node: Flag = Field(
        default=False,
        description="request a whole node, for sites whose Slurm refuses a part of a node, or whose nodes have different GPUs",
    )


class Site(Strict):
    """What servemark requests from Slurm, and what the nodes of the site need."""

    scheduler: Literal["slurm"] = Field(description="the scheduler: `slurm`")
    account: Word | None = Field(default=None, description="sbatch --account; default the user's")
    partition: Word | None = Field(default=None, description="sbatch --partition; default the cluster's")
    qos: Word | None = Field(default=None, description="sbatch --qos")
    constraint: Constraint | None = Field(default=None, description="sbatch --constraint: features of the nodes")
    client_constraint: Constraint | None = Field(
        default=None,
        description="features of the client's own node (`topology.client: own`). servemark requests this node as a second component of the "
        "job, without GPUs",
    )
    client_partition: Word | None = Field(default=None, description="partition of the client's own node; default the servers' one")
    reservation: Word | None = Field(default=None, description="sbatch --reservation")
    exclusive: Flag = Field(default=True, description="request nodes that run no other job; results from a shared node are hard to repeat")
    extra: tuple[SbatchOption, ...] = Field(default=(), description="further options of sbatch, each `--name` or `--name=value`")
    gpus_per_node: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="GPUs requested on each node, and the most that a topology may use there; 0: none"
    )
    gpu_type: Word | None = Field(default=None, description="Slurm's type of the GPUs, `--gres=gpu:TYPE:N`")
    gpu: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="the GPU of the nodes as `servemark plan --gpu` takes it, for `topology: auto`; default `gpu_type`",
    )
    cpus_per_node: Count | None = Field(
        default=None,
        description="CPUs requested on each node if not `exclusive` (default Slurm's choice); `clients: auto` depends on it too",
    )
    memory: Count | None = Field(default=None, description="GiB requested on each node if not `exclusive`; default Slurm's choice")
    max_minutes: Count | None = Field(default=None, description="longest time limit of a job, minutes; default the partition's limit")
    minutes_to_start: Count = Field(default=20, description="minutes planned for starting and stopping the servers")
    minutes_per_point: Count = Field(default=10, description="minutes planned for each missing load point")
    modules: Annotated[tuple[Module, ...], BeforeValidator(listed)] = Field(
        default=(), description="modules that servemark loads on each node"
    )
    variables: Variables = Field(
        default={},
        description="environment variables on the nodes, such as NCCL_* and FI_*; a deployment's own take precedence; no secrets",
    )
    interface: Interface | None = Field(
        default=None,
        description="network between nodes: interface `hsn0`, pattern `hsn*` or network `10.0.0.0/8`; default Slurm's address of the node",
    )
    require_transport: Literal["ib", "efa", "cxi", "any"] = Field(
        default="any",
        description="transport that ranks on several nodes must use, by NCCL's own log: `ib` (InfiniBand or RoCE), `efa` (AWS), `cxi` "
        "(Slingshot) or `any`; a deployment with another one is not started",
    )
    scratch: Scratch = Field(
        default="/tmp",
        description="folder on each node for temporary files such as Ray's sockets; the node expands `$VARIABLES`. "
        f"At most {SCRATCH_LENGTH} characters, because a socket's name is short",
    )
    local_models: NodeFolder | None = Field(
        default=None,
        description="folder on each node's own disk. servemark copies each model there once and checks the copy. The job expands "
        "`$VARIABLES`. Default: servers read the staged model",
    )
    cache: Location | None = Field(
        default=None, description="folder that runs share, on a file system of all nodes; overrides the configuration's `cache`"
    )
    build_on: Place = Field(
        default="login",
        description="where servemark builds environments: `login` (where snakemake runs) or `job` (on a node with the package index)",
    )
    stage_on: Place = Field(
        default="login",
        description="where servemark fetches weights: `login` or `job`; jobs do not get `HF_TOKEN`, so gated models need `login`",
    )
    small_jobs: SmallJobs = Field(default_factory=SmallJobs, description="the short jobs that examine hardware and environment")

    @property
    def other_clients(self) -> bool:
        """Whether the client's own node differs from the servers' nodes."""
        return self.client_constraint is not None or self.client_partition is not None
