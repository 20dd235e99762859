"""One class for each container runtime: what it can start, and the command line that starts a program in an image.

All of them keep the host's process ids, network and IPC, so that the supervisor's process tree, ports and shared memory hold. None mounts
the home folder. Secrets never stand in a command line.
"""

import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from servemark.records import Container, RuntimeName

Kind = Literal["registry", "file", "squashfs", "folder"]
REGISTRY = "docker://"
SQUASHFS = (".sqsh", ".squashfs")
TMP = "/tmp"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN = frozenset({"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "CUDA_HOME", "CUDA_PATH"})


@dataclass(frozen=True)
class Inside:
    """A program in an image.

    Attributes:
        argv: its command line, with paths of the image.
        env: all its variables.
        binds: folders of the host at the same path in the image.
        home: the value of HOME, a private folder in one of ``binds``.
        folder: the working folder.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    binds: Sequence[str]
    home: str
    folder: str


class Runtime(ABC):
    """Starts programs in images.

    Attributes:
        program: its name in the PATH.
        kinds: the kinds of image that it starts.
        version: the argument that prints the version.
    """

    program: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    version: ClassVar[str] = "--version"

    @abstractmethod
    def command(self, image: Container, inside: Inside) -> list[str]:
        """Return the command line that starts a program in an image."""

    def environment(self, host: Mapping[str, str], inside: Inside) -> dict[str, str]:
        """Return the variables of the runtime's own process, by which the program gets its variables."""
        return {**host, **inside.env}

    def prepare(self, image: Container, inside: Inside) -> None:  # noqa: B027 - most runtimes need nothing
        """Make what the runtime needs before its start; raise OSError if that is not possible."""


class Apptainer(Runtime):
    """Apptainer: an image file (SIF) or a folder.

    `apptainer exec --help` (1.4) and its user guide, "Environment and Metadata": APPTAINERENV_X of the runtime becomes X inside.
    """

    program = "apptainer"
    kinds = ("registry", "file", "folder")
    prefix: ClassVar[str] = "APPTAINER"
    """How the names of the runtime's own variables begin."""

    def command(self, image: Container, inside: Inside) -> list[str]:
        # --home with a private folder: with --no-home, a working folder that is the home folder would be mounted.
        # --no-eval: a shell must not evaluate the values.
        own = ["--cleanenv", "--no-eval", f"--home={inside.home}", "--no-mount=cwd", f"--pwd={inside.folder}"]
        binds = [f"--bind={bind}" for bind in (*inside.binds, *image.binds)]
        gpus = ["--nv"] if image.gpus else []
        return [self.program, "--silent", "exec", *own, *binds, *gpus, *image.options, image.place, *inside.argv]

    def environment(self, host: Mapping[str, str], inside: Inside) -> dict[str, str]:
        # --home sets HOME, and Apptainer refuses it as a variable.
        return {**host, **{f"{self.prefix}ENV_{name}": value for name, value in inside.env.items() if name != "HOME"}}


class Singularity(Apptainer):
    """SingularityCE and SingularityPRO: Apptainer's command line, because both come from Singularity. ``singularity exec --help``, 4.1."""

    program = "singularity"
    prefix = "SINGULARITY"


class Charliecloud(Runtime):
    """Charliecloud: a folder. ch-run(1), 0.31.

    ch-run passes its own variables on, binds TMPDIR at /tmp and then removes that variable. It ends without USER.
    """

    program = "ch-run"
    kinds = ("registry", "folder")
    # Modules and login shells may set these again after servemark has removed them.
    _HOST = ("LD_*", "PYTHON*", "CUDA_HOME", "CUDA_PATH", "BASH_*")

    def command(self, image: Container, inside: Inside) -> list[str]:
        own = [f"--unset-env={pattern}" for pattern in self._HOST]
        # The image's own variables: ENV of its Dockerfile. Without them, the host's PATH would hold.
        given = [f"--set-env=PATH={_PATH}", *(["--set-env"] if Path(image.place, "ch/environment").exists() else [])]
        own += ["--env-no-expand", *given, *(f"--set-env={name}={value}" for name, value in _places(inside.env).items())]
        own += [f"--cd={inside.folder}"]
        # ch-run cannot bind below /tmp, which it binds itself.
        own += [f"--bind={bind}" for bind in inside.binds if not is_below(bind, TMP)]
        own += [f"--bind={bind}" for bind in image.binds]
        return [self.program, *own, *image.options, image.place, "--", *inside.argv]

    def environment(self, host: Mapping[str, str], inside: Inside) -> dict[str, str]:
        path = {"PATH": host["PATH"]} if "PATH" in host else {}
        return {**inside.env, **path, "TMPDIR": TMP, "USER": inside.env.get("USER") or str(os.getuid())}

    def prepare(self, image: Container, inside: Inside) -> None:
        # Without --write, a bind needs its folder in the image.
        for bind in (*inside.binds, *image.binds):
            source, _, target = bind.partition(":")
            if not is_below(target or source, TMP):
                _make_place(Path(image.place), Path(source), target or source)


class Podman(Runtime):
    """Podman without root. podman-run(1), 4.3.

    ``--env NAME`` takes the value from podman's own environment. ``--cgroups=disabled`` keeps the processes in the job's cgroup, so that
    Slurm's limits and its choice of GPUs hold. The image's entry point does not run.
    """

    program = "podman"
    kinds = ("registry",)
    gpu_option: ClassVar[str] = "--device=nvidia.com/gpu=all"

    def command(self, image: Container, inside: Inside) -> list[str]:
        own = ["--network=host", "--pid=host", "--ipc=host", "--userns=keep-id", "--cgroups=disabled", "--ulimit=host", "--rm"]
        own += ["--read-only", "--pull=never", "--log-driver=none", "--http-proxy=false", "--security-opt=label=disable", "--entrypoint="]
        # podman needs the host's own values of these.
        places = _places(inside.env)
        own += [f"--env={name}={places[name]}" if name in places else f"--env={name}" for name in sorted(inside.env)]
        own += [f"--volume={bind if ':' in bind else f'{bind}:{bind}'}" for bind in (*inside.binds, *image.binds)]
        own += [f"--workdir={inside.folder}", *([self.gpu_option] if image.gpus else []), *image.options]
        return [self.program, "run", *own, image.place, *inside.argv]

    def environment(self, host: Mapping[str, str], inside: Inside) -> dict[str, str]:
        return {**inside.env, **{name: host[name] for name in ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR") if name in host}}


class PodmanHpc(Podman):
    """NERSC's podman-hpc, podman with images on a shared disk. ``--gpu``: https://docs.nersc.gov/development/containers/podman-hpc/."""

    program = "podman-hpc"
    gpu_option = "--gpu"


class Enroot(Runtime):
    """NVIDIA's enroot, the program that pyxis calls: a squashfs file. doc/cmd/start.md, doc/configuration.md and src/ of enroot 4.1.

    ``enroot start`` replaces itself with the program, so that the process id stays. It passes no variable on that ``--env`` does not name.
    """

    program = "enroot"
    kinds = ("registry", "squashfs")
    version = "version"
    # An image from a registry has an /etc/rc, which would change the folder and start the image's entry point.
    _SCRIPT = Path(__file__).with_name("enroot-rc.sh")
    # doc/configuration.md: variables take precedence over enroot.conf.
    _OFF = ("LOGIN_SHELL", "MOUNT_HOME", "ROOTFS_WRITABLE", "REMAP_ROOT", "RESTRICT_DEV")
    _NAMESPACES = ("UNSHARE_IPC", "UNSHARE_NET", "UNSHARE_PID", "UNSHARE_UTS")

    def command(self, image: Container, inside: Inside) -> list[str]:
        places = _places(inside.env)
        own = [f"--env={name}={places[name]}" if name in places else f"--env={name}" for name in sorted(inside.env)]
        # conf/hooks/98-nvidia.sh. With "void", an image that asks for GPUs starts on a node without a driver.
        own += [f"--env=NVIDIA_VISIBLE_DEVICES={'all' if image.gpus else 'void'}"]
        own += ["--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility"] if image.gpus else []
        own += [f"--mount={self._mount(bind)}" for bind in (*inside.binds, *image.binds)]
        return [self.program, "start", f"--rc={self._SCRIPT}", *own, *image.options, "--", image.place, inside.folder, *inside.argv]

    def environment(self, host: Mapping[str, str], inside: Inside) -> dict[str, str]:
        # The hook for GPUs prefers its own environment to what --env sets.
        kept = {name: value for name, value in host.items() if not name.startswith(("LD_", "NVIDIA_DRIVER_", "NVIDIA_VISIBLE_", "PYTHON"))}
        return {**kept, **{f"ENROOT_{name}": "no" for name in (*self._OFF, *self._NAMESPACES)}, **enroot_folders(inside.home)}

    def prepare(self, image: Container, inside: Inside) -> None:
        for bind in (*inside.binds, *image.binds):
            if re.search(r"\s", bind):
                raise OSError(errno.EINVAL, f"enroot cannot mount a path with a space: {bind}")
        for name, value in inside.env.items():
            # src/common.sh, common::envfmt, removes a pair of quotes.
            if "\n" in value or re.fullmatch(r"""["'].*["']\s*""", value):
                raise OSError(errno.EINVAL, f"enroot cannot pass a value with line breaks or in quotes: {name}")

    def _mount(self, bind: str) -> str:
        source, _, target = bind.partition(":")
        return f"{source}:{target or source}:none:rbind,x-create=auto"


RUNTIMES: dict[RuntimeName, Runtime] = {
    "apptainer": Apptainer(),
    "charliecloud": Charliecloud(),
    "podman": Podman(),
    "podman-hpc": PodmanHpc(),
    "enroot": Enroot(),
    "singularity": Singularity(),
}
# The order in which `auto` searches the PATH. Apptainer also installs a program `singularity`, so Apptainer comes first.
_ORDER: dict[Kind, tuple[RuntimeName, ...]] = {
    "registry": ("apptainer", "podman-hpc", "enroot", "podman", "charliecloud", "singularity"),
    "file": ("apptainer", "singularity"),
    "squashfs": ("enroot",),
    "folder": ("charliecloud", "apptainer", "singularity"),
}


def kind_of(image: str) -> Kind:
    """Return the kind of an image by its name in the configuration."""
    if image.startswith(REGISTRY):
        return "registry"
    return "file" if image.endswith(".sif") else "squashfs" if image.endswith(SQUASHFS) else "folder"


def begins_as_image(file: str) -> bool:
    """Return whether an image file begins as one of its kind: an empty file or a saved error page does not.

    SIF: ``SIF_MAGIC`` after a line that starts the image (github.com/sylabs/sif, pkg/sif/sif.go). Squashfs, which Apptainer also takes
    under the name .sif: ``hsqs`` (linux/include/uapi/linux/magic.h).
    """
    with open(file, "rb") as stream:
        head = stream.read(64)
    return head.startswith(b"hsqs") or (kind_of(file) == "file" and b"SIF_MAGIC" in head)


def candidates(image: str, asked: RuntimeName | Literal["auto"]) -> tuple[RuntimeName, ...]:
    """Return the runtimes that may start an image, most wanted first; empty if the asked one cannot start this kind of image."""
    found = _ORDER[kind_of(image)]
    return found if asked == "auto" else (asked,) if asked in found else ()


def choose(image: str, asked: RuntimeName | Literal["auto"], which: Callable[[str], str | None] | None = None) -> RuntimeName | None:
    """Return the first candidate whose program ``which`` finds (default: in the PATH); None if there is none."""
    find = which or shutil.which
    return next((name for name in candidates(image, asked) if find(RUNTIMES[name].program)), None)


def enroot_folders(private: str) -> dict[str, str]:
    """Return the variables that keep enroot's own files in a private folder: enroot makes these folders, by default in the home folder."""
    return {f"ENROOT_{name.upper()}_PATH": f"{private}/.enroot-{os.getuid()}/{name}" for name in ("runtime", "config", "cache", "data")}


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it, by its name."""
    return os.path.normpath(path.partition(":")[0]).startswith((f"{folder}/",)) or os.path.normpath(path) == folder


def _places(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the runtime needs for itself or modules may set. None of them is a secret."""
    return {name: env[name] for name in sorted(env) if name in _OWN or name.startswith(("LD_", "PYTHON"))}


def _make_place(image: Path, source: Path, target: str) -> None:
    """Make the folder or file of a bind in the image's folder, unless it exists."""
    place = image / target.lstrip("/")
    try:
        if not os.path.lexists(place):
            folder = place if source.is_dir() else place.parent
            folder.mkdir(parents=True, exist_ok=True)
            if folder != place:
                place.touch()
    except OSError as error:
        raise OSError(
            error.errno, f"{target} does not exist in the image and cannot be made there ({error.strerror})", str(image)
        ) from None
