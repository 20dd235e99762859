"""What a run finds or makes before it starts anything: sources, hardware, environments, models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Record, Strict


class Gpu(Strict):
    """One GPU, as nvidia-smi reports it."""

    name: str
    memory_mib: int
    uuid: str | None = None


class Interface(Strict):
    """A network interface and its IPv4 address."""

    name: str
    address: str


class Hardware(Record):
    """What the machine that will run the model is. Written by probe_hardware."""

    KIND = "hardware"
    accelerator: Literal["cpu", "cuda"]
    host: str
    cpu_model: str
    cpu_count: int = Field(description="logical CPUs this process may use")
    memory_gib: float
    shm_gib: float = Field(description="size of /dev/shm")
    architecture: str
    kernel: str
    os: str
    glibc: str
    gpus: tuple[Gpu, ...] = Field(default=(), description="usable ones, in the order of CUDA_VISIBLE_DEVICES, else of nvidia-smi")
    hidden_gpus: int = Field(default=0, description="how many more the machine has, which CUDA_VISIBLE_DEVICES hides")
    cuda_visible_devices: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES as the probe found it; null: it was not set")
    driver: str | None = None
    cuda: str | None = Field(default=None, description="highest CUDA version the driver can do")
    gpu_topology: str | None = Field(
        default=None, description="nvidia-smi topo -m, hidden GPUs too; null: none, or the probe had a part of the GPUs"
    )
    worked_out: dict[str, str] = Field(default={}, description="source of each number that a probe with a part of the node derived")
    interfaces: tuple[Interface, ...] = ()
    nofile: int
    nproc: int
    probed_at: str

    @property
    def devices(self) -> int:
        """Devices for ranks on one node: GPUs, or logical CPUs where there are none."""
        return len(self.gpus) if self.accelerator == "cuda" else self.cpu_count


class Environment(Record):
    """An interpreter with vLLM, Ray and torch. Written by build_environment."""

    KIND = "environment"
    name: str
    origin: Literal["lock", "prefix"]
    digest: str = Field(description="sha256 over what was installed; the ledger's environment identity")
    prefix: str
    python: str = Field(description="path of the interpreter")
    lock: str | None = None
    packages: int
    installed: str | None = Field(default=None, description="sha256 over the distributions of one built here")
    bytecode: str | None = Field(default=None, description="folder in which Python keeps its compiled modules; null: next to their sources")
    seconds: float = Field(description="time this build took; 0 when an existing one was used")
    size_mib: float


class KernelTools(Strict):
    """What FlashInfer has, or finds on the node, to get the kernels that vLLM calls."""

    flashinfer: str | None = Field(default=None, description="version of flashinfer-python; null: not installed")
    precompiled: bool = Field(default=False, description="flashinfer-jit-cache of the same version is installed")
    sampler: bool = Field(default=False, description="whether vLLM uses FlashInfer's sampler unless told otherwise")
    nvcc: str | None = Field(default=None, description="the CUDA compiler that FlashInfer would call; null: none")
    nvcc_cuda: str | None = Field(default=None, description="CUDA version of that compiler, as it reports it")
    headers_cuda: str | None = Field(default=None, description="CUDA version of the headers next to it")
    ninja: str | None = Field(default=None, description="the ninja in the PATH; null: none")
    compiler: str | None = Field(default=None, description="the C++ compiler (CXX, or c++ in the PATH); null: none")


class EnvironmentCheck(Record):
    """What the environment says of itself on the node. Written by check_environment."""

    KIND = "environment_check"
    name: str
    digest: str
    python_version: str
    vllm: str
    torch: str
    torch_cuda: str | None
    ray: str | None
    router: bool | None = Field(default=None, description="whether vllm-router is there; null: it was not asked")
    nccl: str | None = None
    vllm_platform: str
    tensor_on: Literal["cpu", "cuda"] | None = Field(default=None, description="where torch added two numbers; cpu of a CUDA build: no GPU")
    serve_options: tuple[str, ...] = Field(default=(), description="every option `vllm serve --help=all` knows, without dashes")
    variables: tuple[str, ...] = Field(default=(), description="every VLLM_ variable that vllm/envs.py lists; none: it was not asked")
    kernels: KernelTools | None = Field(default=None, description="null: no CUDA build, or not looked up")
    warnings: tuple[str, ...] = ()


class ModelFile(Strict):
    """One file of a model; ``size`` in bytes."""

    path: str
    size: int
    sha256: str


class Manifest(Record):
    """A model at an exact revision. Written by stage_weights."""

    KIND = "manifest"
    name: str
    source: str
    path: str = Field(description="directory with the files")
    digest: str = Field(description="sha256 over the sorted (path, size, sha256) lines; the ledger's model identity")
    files: tuple[ModelFile, ...]
    bytes: int
    config: dict[str, Any] = Field(description="the model's config.json")
    weight_bytes: int | None = Field(description="sum of the safetensors files' tensor bytes; null: random weights, none are stored")
    parameters: int = Field(description="number of parameters: from the safetensors headers, or from the shape where there are none")
    load_format: Literal["auto", "dummy"] = Field(default="auto", description="dummy: random weights; config and tokenizer alone")


class GivenFile(Strict):
    """A configuration file as the user wrote it."""

    path: str
    sha256: str
    text: str


class Sources(Record):
    """What a run's main process was started from. Written at its start, copied into the folder of every attempt that it makes."""

    KIND = "sources"
    servemark: str = Field(description="version")
    commit: str | None = Field(default=None, description="of the checkout, 40 hexadecimal digits")
    why: str | None = Field(default=None, description="why there is no commit")
    dirty: bool | None = Field(default=None, description="tracked files differ from the commit, or code is untracked; None: no commit")
    changes: int = Field(default=0, description="number of such files")
    changed: tuple[str, ...] = Field(default=(), description="their names, at most 100")
    changes_sha256: str | None = Field(
        default=None, description="sha256 of a line `SHA256  NAME` for each by name, `deleted  NAME` for a deleted one"
    )
    configuration: tuple[GivenFile, ...] = Field(default=(), description="the given files, later ones take precedence; without --config")
