"""``environments.NAME.container``: an image that runs vLLM."""

import os
import posixpath
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from servemark.config.field_types import listed, refuse
from servemark.containers import runtimes
from servemark.containers.runtimes import REGISTRY
from servemark.files import folder_name
from servemark.records import RuntimeName, Strict
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

# [HOST[:PORT]/]PATH with an optional tag and digest, as in the OCI distribution specification.
_NAME = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
# Image files that no runtime here starts under this name.
_FILE = re.compile(r"\.(?:img|simg|sqfs|tar)$")
# Folders without which nothing in an image runs, and those that servemark or the runtime binds.
_NEEDED = ("/", "/bin", "/dev", "/dev/shm", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib")


def _absolute(path: str, what: str) -> str:
    if "$" in path or not os.path.isabs(path):
        raise refuse(f"{what} must be a full path that begins with a slash, without variables")
    if fault := folder_name.fault(os.fsencode(path)):
        raise refuse(f"this path {fault}; name another one")
    return posixpath.normpath(path)


def _image(value: str) -> str:
    if value.startswith(REGISTRY):
        if not _NAME.fullmatch(value.removeprefix(REGISTRY)):
            raise refuse("is not the name of an image; write docker://[HOST[:PORT]/]NAME:TAG or docker://NAME@sha256:DIGEST")
        return value
    if "://" in value:
        raise refuse("is an unknown source of images", allowed=("docker://NAME:TAG", "/path/image.sif", "/path/image.sqsh", "/path/folder"))
    if not value.startswith(("/", ".", "~")) and runtimes.kind_of(value) == "folder" and not _FILE.search(value) and _NAME.fullmatch(value):
        raise refuse(f"must begin with a slash if it is a file or folder; for an image of a registry write `{REGISTRY}{value}`")
    return _absolute(os.path.expanduser(value), "an image file or folder")


def _bind(value: str) -> str:
    source, colon, target = value.partition(":")
    if ":" in target:
        raise refuse("must be HOST or HOST:IMAGE, with two paths and no options")
    source = _absolute(os.path.expanduser(source), "the folder of the host")
    target = _absolute(target, "the folder in the image") if colon else source
    if target in _NEEDED:
        raise refuse(f"would hide {target} of the image, or what servemark binds there; choose a folder inside it or another one")
    return f"{source}:{target}"


def _option(value: str) -> str:
    if not re.fullmatch(r"--?[A-Za-z][^\n\0]*", value):
        raise refuse("must be one option of the runtime, `--name` or `--name=value`")
    if any(looks_secret(name) for name in re.findall(r"\w+(?==)", value)):
        raise refuse("looks like a secret, and a configuration must not hold secrets", hide=True)
    return value


def _inside(value: str) -> str:
    return _absolute(value, "the interpreter in the image")


def _runtime(value: Any) -> Any:
    if value == "pyxis":
        raise refuse(
            "must be another program: pyxis starts a Slurm step in an image, and servemark starts its own process on each node outside "
            "the image. Nodes with pyxis have enroot, which pyxis calls: set `runtime: enroot`"
        )
    return value


def _texts(value: Any) -> Any:
    if isinstance(value, list | tuple) and not all(isinstance(one, str) for one in value):
        raise refuse("must be a list of texts")
    return listed(value)


class Container(Strict):
    """A container image with vLLM, and how servemark starts programs in it."""

    image: Annotated[str, AfterValidator(_image)] = Field(
        description="an image of a registry, an image of Apptainer, SingularityCE or enroot, or the folder of an unpacked image: "
        "`docker://NAME:TAG`, `docker://NAME@sha256:DIGEST`, `/path/image.sif`, `/path/image.sqsh` or `/path/folder`. servemark fetches an "
        "image of a registry once into the cache. It looks up the digest of a tag when it builds the environment"
    )
    runtime: Annotated[Literal["auto", RuntimeName], BeforeValidator(_runtime)] = Field(
        default="auto", description="the program that starts the image; `auto` takes the first one in the PATH that can start it"
    )
    binds: Annotated[tuple[Annotated[str, AfterValidator(_bind)], ...], BeforeValidator(_texts)] = Field(
        default=(),
        description="further folders of the node in the image, `/path` or `/host:/image`. servemark binds the checkout, models, caches and "
        "temporary folders itself, and never the home folder",
    )
    options: Annotated[tuple[Annotated[str, AfterValidator(_option)], ...], BeforeValidator(_texts)] = Field(
        default=(), description="further options of the runtime, each `--name` or `--name=value`; no secrets"
    )
    python: Annotated[str, AfterValidator(_inside)] | None = Field(
        default=None, description="path of the interpreter in the image; default `python3` in the image's PATH"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Container":
        if not runtimes.candidates(self.image, self.runtime):
            able = [name for name in get_args(RuntimeName) if runtimes.candidates(self.image, name)]
            raise refuse(f"{self.runtime} cannot start this kind of image", allowed=("auto", *able), at=("runtime",))
        return self
