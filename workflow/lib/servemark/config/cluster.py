"""A cluster file, config/clusters/NAME.yaml: what a site asks for, and how its nodes are used."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from servemark.config.field_types import Flag, Location, Variables, refuse
from servemark.config.reserved import SBATCH_OPTIONS, refusal
from servemark.records import Strict
from servemark.records.base import Count

FOLDER = Path("config/clusters")

# What a shell or sbatch could take for anything but a name is left out: the words become parts of command lines.
WORD_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$"
CONSTRAINT_PATTERN = r"^[A-Za-z0-9(\[][A-Za-z0-9_.,:+*&|()\[\]-]*$"
MODULE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+/-]*$"
INTERFACE_PATTERN = r"^[A-Za-z0-9*?\[][A-Za-z0-9_.:*?\[\]-]*$"
SCRATCH_PATTERN = r"^[/$][A-Za-z0-9_./${}-]*$"

# Ray adds some 67 characters to the folder it is given, and the name of a Unix socket has at most 107 bytes
# (sun_path of unix(7)); servemark's own part lies between the two.
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
            raise refuse(f"is no IPv4 network such as 10.0.0.0/8: {error}") from None
    if not isinstance(text, str) or not re.fullmatch(INTERFACE_PATTERN, text):
        raise refuse("must be an interface `hsn0`, a pattern `hsn*` or an IPv4 network `10.0.0.0/8`")
    return text


def _scratch(text: str) -> str:
    if "$" not in text and len(text) > SCRATCH_LENGTH:
        why = "Ray makes sockets below it, and a socket's name has at most 107 bytes; name a shorter folder, or link one"
        raise refuse(f"has more than {SCRATCH_LENGTH} characters: {why}")
    return text


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Word = Annotated[str, Field(pattern=WORD_PATTERN)]
Constraint = Annotated[str, Field(pattern=CONSTRAINT_PATTERN)]
Module = Annotated[str, Field(pattern=MODULE_PATTERN)]
SbatchOption = Annotated[str, AfterValidator(_sbatch_option), WithJsonSchema({"type": "string", "pattern": "^--[a-z]"})]
Interface = Annotated[str, PlainValidator(_interface), WithJsonSchema({"type": "string", "minLength": 1})]
NodeFolder = Annotated[str, Field(pattern=SCRATCH_PATTERN)]
Scratch = Annotated[NodeFolder, AfterValidator(_scratch)]
Place = Literal["login", "job"]


class SmallJobs(Strict):
    """Where the short jobs run."""

    partition: Word | None = Field(default=None, description="partition; as the deployments' when left out")
    account: Word | None = Field(default=None, description="account; as the deployments' when left out")
    qos: Word | None = Field(default=None, description="quality of service; as the deployments' when left out")
    minutes: Count = Field(default=15, description="minutes asked for each")
    whole_node: Flag = Field(
        default=False, description="request a whole node for short jobs, for Slurm that refuses a part or nodes whose GPUs differ"
    )


class Site(Strict):
    """A site: what is asked of its scheduler, and what its nodes need."""

    scheduler: Literal["slurm"] = Field(description="what hands out nodes: `slurm`")
    account: Word | None = Field(default=None, description="sbatch --account; the user's default when left out")
    partition: Word | None = Field(default=None, description="sbatch --partition; the cluster's default when left out")
    qos: Word | None = Field(default=None, description="sbatch --qos")
    constraint: Constraint | None = Field(default=None, description="sbatch --constraint: features of the nodes")
    client_constraint: Constraint | None = Field(
        default=None, description="features of the client's own node (`topology.client: own`), a second component of the job without GPUs"
    )
    client_partition: Word | None = Field(default=None, description="partition of the client's own node; as the servers' when left out")
    reservation: Word | None = Field(default=None, description="sbatch --reservation")
    exclusive: Flag = Field(default=True, description="share nodes with no other job; results from a shared node are hard to repeat")
    extra: tuple[SbatchOption, ...] = Field(default=(), description="further options of sbatch, each `--name` or `--name=value`")
    gpus_per_node: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="GPUs asked on each node, and the most that a topology may use there; 0: none"
    )
    gpu_type: Word | None = Field(default=None, description="type of the GPUs as Slurm names it, `--gres=gpu:TYPE:N`")
    cpus_per_node: Count | None = Field(
        default=None,
        description="CPUs asked on each node if not `exclusive` (Slurm chooses when left out); also the basis of `clients: auto`",
    )
    memory: Count | None = Field(default=None, description="GiB asked on each node if not `exclusive`; Slurm's choice when left out")
    max_minutes: Count | None = Field(default=None, description="longest job to ask for, minutes; the partition's limit when left out")
    minutes_to_start: Count = Field(default=20, description="minutes planned for starting and stopping the servers")
    minutes_per_point: Count = Field(default=10, description="minutes planned for each missing load point")
    modules: Annotated[tuple[Module, ...], BeforeValidator(_listed)] = Field(default=(), description="names for `module load` on each node")
    variables: Variables = Field(
        default={},
        description="variables of everything on the nodes, such as NCCL_* and FI_*; a deployment's own take precedence; no secrets",
    )
    interface: Interface | None = Field(
        default=None,
        description="network between nodes: interface `hsn0`, pattern `hsn*` or network `10.0.0.0/8`; Slurm's address when left out",
    )
    scratch: Scratch = Field(
        default="/tmp",
        description="folder on each node for short-lived files such as Ray's sockets; `$VARIABLES` are expanded on the "
        f"node. At most {SCRATCH_LENGTH} characters, because a socket's name is short",
    )
    local_models: NodeFolder | None = Field(
        default=None,
        description="folder on each node's own disk into which models are copied once and checked; `$VARIABLES` are expanded in the job. "
        "When left out, servers read the model where it was staged",
    )
    cache: Location | None = Field(
        default=None, description="what runs share, on a file system that every node sees; in place of the experiment's `cache`"
    )
    build_on: Place = Field(
        default="login",
        description="where environments are built: `login` (where snakemake runs) or `job` (on a node with the package index)",
    )
    stage_on: Place = Field(
        default="login",
        description="where weights are fetched and checked: `login` or `job`; jobs do not get `HF_TOKEN`, so gated models need `login`",
    )
    small_jobs: SmallJobs = Field(default_factory=SmallJobs, description="the short jobs that examine hardware and environment")

    @property
    def other_clients(self) -> bool:
        """Whether a client's own node is of another kind than the servers'."""
        return self.client_constraint is not None or self.client_partition is not None
