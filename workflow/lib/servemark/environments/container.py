"""An environment in a container image: fetch the image once, and describe it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from servemark.containers.runtimes import RUNTIMES, Apptainer, Singularity, candidates, choose, enroot_folders, kind_of
from servemark.environments import images, interpreter, registry
from servemark.environments.registry import Reference
from servemark.errors import EnvironmentRefused
from servemark.files import cache_lock, storage
from servemark.processes import identity
from servemark.processes.children import OwnerWatch, run_tool
from servemark.progress import Progress
from servemark.records import Container, Environment, RuntimeName
from servemark.supervisor import process_request
from servemark.variables import passed_on

TOOL_S = 120.0
# Charliecloud's programs end without this variable.
_USER = {"USER": os.environ.get("USER") or str(os.getuid())}
_DEFAULT_PYTHON = 'command -v python3 || command -v python; echo "$PATH"'


@dataclass(frozen=True)
class Builder:
    """Makes the environment ``name`` from its section ``container`` of the configuration.

    Attributes:
        asked: that section, as JSON.
        modules: environment modules that bring the runtime.
    """

    name: str
    asked: dict[str, Any]
    cache: Path
    modules: Sequence[str]
    log: Path
    timeout_s: float
    progress: Progress
    watch: OwnerWatch

    @property
    def key(self) -> str:
        """The key of the configuration, for messages."""
        return f"environments.{self.name}.container"

    def build(self) -> Environment:
        """Fetch the image, unless it is in the cache, and describe it.

        Raises:
            EnvironmentRefused: there is no runtime, the image cannot be fetched or read, or has no interpreter.
            CacheClosed: the cache takes no files.
        """
        begin = time.monotonic()
        runtime = self._runtime()
        image = self._image(runtime)
        python, path = self._python(image)
        image = image.model_copy(update={"path": path})
        found = interpreter.ask(Path(python), image, self.modules)
        digest = images.digest_now(image, self.cache, self.progress, self.modules)
        image = image.model_copy(update={"packages": found.packages, "digest": digest})
        size = os.path.getsize(image.place) / 2**20 if os.path.isfile(image.place) else 0.0
        return Environment(
            name=self.name,
            origin="container",
            digest=image.digest.removeprefix("sha256:"),
            prefix=image.place,
            python=python,
            container=image,
            packages=len(found.packages),
            seconds=round(time.monotonic() - begin, 2),
            size_mib=round(size, 1),
        )

    def _runtime(self) -> RuntimeName:
        image, asked = self.asked["image"], self.asked["runtime"]
        runtime = choose(image, asked, self._which)
        if runtime is None:
            programs = " or ".join(RUNTIMES[name].program for name in candidates(image, asked))
            loaded = f" with the modules {', '.join(self.modules)}" if self.modules else ""
            raise EnvironmentRefused(
                f"{self.key}: {programs} is not in the PATH of {identity.host()}{loaded}.",
                do=f"Install it, load its module (`modules` in the cluster file), or set another {self.key}.runtime. If only the nodes "
                "have it, set `build_on: job` in the cluster file.",
                reason="runtime_missing",
            )
        self.progress.say(f"{self.key}: {runtime} starts the image")
        return runtime

    def _which(self, program: str) -> str | None:
        return process_request.which(program, self.modules)

    def _image(self, runtime: RuntimeName) -> Container:
        asked = self.asked["image"]
        image = Container(
            image=asked,
            runtime=runtime,
            version=self._version(runtime),
            place=asked,
            digest="",
            binds=self.asked["binds"],
            options=self.asked["options"],
        )
        if kind_of(asked) != "registry":
            return image
        reference = Reference.parse(asked)
        digest = registry.resolve(f"{self.key}.image", reference)
        if not reference.digest:
            self.progress.say(f"{self.key}: the tag {reference.tag} is {digest}")
        return self._fetched(image.model_copy(update={"digest": digest}), reference)

    def _version(self, runtime: RuntimeName) -> str:
        argv = process_request.with_modules([RUNTIMES[runtime].program, RUNTIMES[runtime].version], self.modules)
        with tempfile.TemporaryDirectory() as private:
            env = passed_on.clean_environment({**_USER, **enroot_folders(private)})
            done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_S, env=env)
        # ch-run prints its version on standard error.
        return next(iter((done.stdout.strip() or done.stderr.strip()).splitlines()), "")

    def _fetched(self, image: Container, reference: Reference) -> Container:
        """Return the image with its place; fetch it into the cache first if no run has done so."""
        folder = (self.cache / images.FOLDER).absolute()
        name = f"{image.runtime}-{image.digest.removeprefix('sha256:')[:12]}"
        image = image.model_copy(update={"place": _place(image, reference, folder, name)})
        if images.exists(image, self.modules):
            self.progress.say(f"the image {reference.repository} is in the cache already")
            return image
        words = f"fetching the image {reference.repository} with {image.runtime}"
        with cache_lock.held(folder / f"{name}.lock", partial(self.progress.waiting, "waiting: another run fetches this image")):
            if not images.exists(image, self.modules):
                self.progress.say(words)
                self._fetch(image, reference, folder, words)
        return image

    def _fetch(self, image: Container, reference: Reference, folder: Path, words: str) -> None:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as temporary:
            draft = Path(temporary) / "image"
            # Layers and drafts lie in the cache: a home folder is often too small for them.
            layers, store = f"{temporary}/layers", f"{temporary}/storage"
            own = {**_USER, "TMPDIR": temporary, "CH_IMAGE_STORAGE": store} | enroot_folders(temporary)
            for prefix in (Apptainer.prefix, Singularity.prefix):
                own |= {f"{prefix}_TMPDIR": temporary, f"{prefix}_CACHEDIR": layers}
            # The user's credentials for enroot are in the folder of its configuration. A registry on loopback has no certificate.
            del own["ENROOT_CONFIG_PATH"]
            own["ENROOT_ALLOW_HTTP"] = "yes" if reference.on_loopback else "no"
            env = passed_on.clean_environment(own)
            # ch-image is a script of Debian's Python, which must come first.
            env = passed_on.with_tools_of(self._which(_fetching(image, reference, draft)[0][0]) or "", env)
            for argv in _fetching(image, reference, draft):
                argv = process_request.with_modules(argv, self.modules)
                check = partial(self.progress.waiting, words)
                result = run_tool(argv, log=self.log, env=env, timeout_s=self.timeout_s, watch=self.watch, check=check)
                if result.exit_code != 0 or result.stopped:
                    raise self._not_fetched(image, result.stopped)
            if draft.exists():
                draft.rename(image.place)

    def _not_fetched(self, image: Container, stopped: str | None) -> Exception:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        if refused := storage.refusal(storage.stated("\n".join(lines)), self.cache):
            return refused
        return EnvironmentRefused(
            f"{self.key}: {image.runtime} could not fetch {image.image}: {stopped or (lines or ['(no output)'])[-1]}",
            look=str(self.log),
            do="Read the log, fix the cause and rerun. Or fetch the image by hand and set its file or folder as the image.",
            reason="build_failed",
        )

    def _python(self, image: Container) -> tuple[str, str]:
        """Return the interpreter and the PATH of the image."""
        lines = interpreter.run(["/bin/sh", "-c", _DEFAULT_PYTHON], image, self.modules).splitlines()
        python = self.asked["python"] or (lines[0] if len(lines) > 1 else None)
        if not python:
            raise EnvironmentRefused(
                f"{self.key}: the image has no python3 in its PATH ({lines[-1] if lines else 'empty'}).",
                do=f"Set {self.key}.python to the path of the interpreter in the image that has vLLM.",
                reason="prefix_missing",
            )
        return python, lines[-1]


def _place(image: Container, reference: Reference, folder: Path, name: str) -> str:
    if image.runtime in ("podman", "podman-hpc"):
        return reference.pinned(image.digest)
    return str(folder / (name + {"apptainer": ".sif", "singularity": ".sif", "enroot": ".sqsh"}.get(image.runtime, "")))


def _fetching(image: Container, reference: Reference, draft: Path) -> list[list[str]]:
    """Return the commands that fetch an image to ``draft``, or into the runtime's own store. A registry on loopback has no certificate."""
    pinned = reference.pinned(image.digest)
    if image.runtime in ("apptainer", "singularity"):
        plain = ["--no-https"] if reference.on_loopback else []
        return [[image.runtime, "pull", *plain, str(draft), f"docker://{pinned}"]]
    if image.runtime == "charliecloud":
        plain = ["--tls-no-verify"] if reference.on_loopback else []
        # Its cache of builds is a git repository: it needs a git identity, and is slow.
        return [["ch-image", "--no-cache", *plain, "pull", pinned], ["ch-convert", "-i", "ch-image", "-o", "dir", pinned, str(draft)]]
    if image.runtime == "enroot":
        return [["enroot", "import", f"--output={draft}", reference.enroot(image.digest)]]
    plain = ["--tls-verify=false"] if reference.on_loopback else []
    return [[RUNTIMES[image.runtime].program, "pull", *plain, pinned]]
