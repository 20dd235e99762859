"""Inputs of a run: sources, hardware, environments, models."""

from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.options import Argument


class Gpu(Strict):
    """One GPU, as nvidia-smi reports it."""

    name: str
    memory_mib: int
    uuid: str | None = None
    index: int | None = Field(default=None, description="place in nvidia-smi's list; null: not seen by the probe, or not recorded")
    power_limit_w: float | None = Field(default=None, description="watts; null: not reported, or not recorded")
    ecc: bool | None = Field(default=None, description="whether memory errors are corrected; null: not reported, or not recorded")
    nvlinks: int | None = Field(default=None, description="active NVLinks; null: not reported, or not recorded")
    mig: bool | None = Field(default=None, description="whether the GPU is in MIG mode; null: not reported, or not recorded")


class Interface(Strict):
    """A network interface and its IPv4 address."""

    name: str
    address: str
    speed_mbit: int | None = Field(default=None, description="Mbit/s; null: not reported, or not recorded")


class FastAdapter(Strict):
    """An adapter with which ranks on several nodes can communicate faster than over TCP."""

    name: str
    kind: Literal["ib", "efa", "cxi"] = Field(description="ib: InfiniBand or RoCE; efa: AWS; cxi: Slingshot")
    gbit: float | None = Field(default=None, description="Gbit/s of its fastest active port; null: not reported")


class Hardware(Record):
    """Hardware of the machine that runs the model. probe_hardware writes it."""

    KIND = "hardware"
    accelerator: Literal["cpu", "cuda"]
    host: str
    cpu_model: str
    cpu_count: int = Field(description="logical CPUs that the probe may use")
    cpus_online: int | None = Field(default=None, description="logical CPUs of the machine; null: not recorded")
    node_model: str | None = Field(default=None, description="product name of the machine (DMI, or the device tree); null: none")
    memory_gib: float
    shm_gib: float = Field(description="size of /dev/shm")
    architecture: str
    kernel: str
    os: str
    glibc: str
    gpus: tuple[Gpu, ...] = Field(default=(), description="usable ones, in the order of CUDA_VISIBLE_DEVICES, else of nvidia-smi")
    hidden_gpus: int = Field(default=0, description="number of further GPUs that CUDA_VISIBLE_DEVICES hides")
    cuda_visible_devices: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES of the probe; null: not set")
    driver: str | None = None
    cuda: str | None = Field(default=None, description="highest CUDA version that the driver supports")
    gpu_topology: str | None = Field(default=None, description="nvidia-smi topo -m, with hidden GPUs; null: none, or only some were probed")
    worked_out: dict[str, str] = Field(default={}, description="source of each number that a probe on a part of the node derived")
    interfaces: tuple[Interface, ...] = ()
    nofile: int
    nproc: int
    probed_at: str

    @property
    def devices(self) -> int:
        """Devices for ranks on one node: GPUs, or logical CPUs where there are none."""
        return len(self.gpus) if self.accelerator == "cuda" else self.cpu_count


RuntimeName = Literal["apptainer", "charliecloud", "enroot", "podman", "podman-hpc", "singularity"]


class Container(Strict):
    """The image of an environment, and how its programs start."""

    image: str = Field(description="the image as the configuration names it")
    runtime: RuntimeName
    version: str = Field(default="", description="what the runtime reports as its version")
    place: str = Field(description="what the runtime starts: an image file, a folder, or a name with a digest")
    digest: str = Field(description="of the registry's manifest, of the image file, or of the files of the folder; `sha256:HEX`")
    path: str = Field(default="", description="PATH in the image")
    packages: tuple[str, ...] = Field(default=(), description="`name==version` of each package of the interpreter")
    binds: tuple[str, ...] = Field(default=(), description="further folders, `HOST:IMAGE`")
    options: tuple[str, ...] = Field(default=(), description="further options of the runtime")
    gpus: bool = Field(default=False, description="programs get the node's GPUs; set for each process")


class Environment(Record):
    """An interpreter with vLLM, Ray and torch. build_environment writes it."""

    KIND = "environment"
    name: str
    origin: Literal["lock", "prefix", "container"]
    digest: str = Field(
        description="sha256 of the installed files and the interpreter's version, or of the container image; the environment's identity in "
        "the ledger"
    )
    prefix: str = Field(description="folder of the environment; of a container: its image")
    python: str = Field(description="path of the interpreter; of a container: in the image")
    container: Container | None = Field(default=None, description="the container image; null: none")
    lock: str | None = None
    packages: int
    files: int | None = Field(default=None, description="installed files that the digest covers; null: made before servemark hashed them")
    installed: str | None = Field(default=None, description="digest after the build; another `digest`: files were changed or added later")
    bytecode: str | None = Field(default=None, description="folder of Python's compiled modules; null: next to their sources")
    seconds: float = Field(description="time of the build; 0 for an existing environment")
    size_mib: float


class KernelTools(Strict):
    """Means of FlashInfer to get the kernels that vLLM calls: precompiled ones, or a compiler on the node."""

    flashinfer: str | None = Field(default=None, description="version of flashinfer-python; null: not installed")
    precompiled: bool = Field(default=False, description="flashinfer-jit-cache of the same version is installed")
    sampler: bool = Field(default=False, description="whether vLLM uses FlashInfer's sampler by default")
    nvcc: str | None = Field(default=None, description="CUDA compiler that FlashInfer would call; null: none")
    nvcc_cuda: str | None = Field(default=None, description="CUDA version that this compiler reports")
    headers_cuda: str | None = Field(default=None, description="CUDA version of the headers next to the compiler")
    ninja: str | None = Field(default=None, description="ninja in the PATH; null: none")
    compiler: str | None = Field(default=None, description="C++ compiler (CXX, or c++ in the PATH); null: none")


class EnvironmentCheck(Record):
    """What the environment reports on the node. check_environment writes it."""

    KIND = "environment_check"
    name: str
    digest: str
    python_version: str
    vllm: str
    torch: str
    torch_cuda: str | None
    ray: str | None
    router: bool | None = Field(default=None, description="whether vllm-router is installed; null: not checked")
    nccl: str | None = None
    vllm_platform: str
    tensor_on: Literal["cpu", "cuda"] | None = Field(default=None, description="where torch can compute; cpu with a CUDA build: no GPU")
    serve_options: tuple[str, ...] = Field(default=(), description="every option of `vllm serve`, without dashes")
    serve_arguments: tuple[Argument, ...] = Field(default=(), description="these options with types and choices; empty: not recorded")
    client_arguments: tuple[Argument, ...] = Field(default=(), description="options of `vllm bench serve`; empty: not recorded")
    variables: tuple[str, ...] = Field(default=(), description="every VLLM_ variable in vllm/envs.py; empty: not checked")
    kernels: KernelTools | None = Field(default=None, description="null: no CUDA build, or not checked")
    warnings: tuple[str, ...] = ()


class ModelFile(Strict):
    """One file of a model; ``size`` in bytes."""

    path: str
    size: int
    sha256: str


class Manifest(Record):
    """A model at an exact revision. stage_weights writes it."""

    KIND = "manifest"
    name: str
    source: str
    path: str = Field(description="directory with the files")
    digest: str = Field(description="sha256 of (path, size, sha256) of the files that servers may read; the model's identity in the ledger")
    files: tuple[ModelFile, ...]
    bytes: int
    config: dict[str, Any] = Field(description="the model's config.json")
    weight_bytes: int | None = Field(description="bytes of all tensors in the safetensors files; null: random weights, none are stored")
    parameters: int | None = Field(
        description="number of parameters: from the safetensors headers, else from the model's shape; null: random weights of unknown shape"
    )
    load_format: Literal["auto", "dummy"] = Field(default="auto", description="dummy: random weights; only config and tokenizer are files")
    ignored: tuple[str, ...] = Field(default=(), description="weights in the directory that vLLM does not load; not hashed")

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens that the model knows; None if its config.json does not state it."""
        text = self.config.get("text_config")
        size = self.config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
        return size if isinstance(size, int) and size > 0 else None


class GivenFile(Strict):
    """A configuration file as the user wrote it."""

    path: str
    sha256: str
    text: str


class Sources(Record):
    """Code and configuration of a run. The main process writes it at its start and copies it into the folder of each attempt."""

    KIND = "sources"
    servemark: str = Field(description="version")
    commit: str | None = Field(default=None, description="commit of the checkout, 40 hexadecimal digits")
    why: str | None = Field(default=None, description="why there is no commit")
    dirty: bool | None = Field(default=None, description="tracked files differ from the commit, or code is untracked; null: no commit")
    changes: int = Field(default=0, description="number of these files")
    changed: tuple[str, ...] = Field(default=(), description="their names, at most 100")
    changes_sha256: str | None = Field(default=None, description="sha256 of the sorted lines `SHA256  NAME` or `deleted  NAME`")
    configuration: tuple[GivenFile, ...] = Field(default=(), description="configuration files, the last takes precedence; without --config")
