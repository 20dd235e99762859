"""The models of a first configuration: found on this machine or named by the user, and the tensor parallel size for one node."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from servemark.config.model import Model
from servemark.config.problems import describe, from_pydantic
from servemark.errors import ConfigError, WeightsRefused
from servemark.files import storage
from servemark.planning.legality import legality
from servemark.records import Topology
from servemark.weights import hub_cache, hub_source, manifest
from servemark.weights.architecture import Architecture
from servemark.weights.builtin import CONFIGS

BUILTIN = "builtin:"
TINY = f"{BUILTIN}tiny-dense"
MAX_FOLDERS = 1000
"""Folders in which a folder of models is searched; more is a folder named by mistake."""


@dataclass(frozen=True)
class Found:
    """A model that a configuration can name.

    Attributes:
        source: as the key ``source`` takes it.
        title: for people.
        name: as the key under ``models`` takes it.
        architecture: None if nothing on this machine states it.
        stored: for ``hf:``, the complete snapshot in a Hugging Face cache of this machine; None without one.
    """

    source: str
    title: str
    name: str
    architecture: Architecture | None
    stored: Path | None = None

    @property
    def builtin(self) -> bool:
        """Whether servemark makes it."""
        return self.source.startswith(BUILTIN)


def builtin(kind: str = "tiny-dense") -> Found:
    """Return a built-in model."""
    title = f"{BUILTIN}{kind}, tiny and with random weights: a test of everything but the results"
    return Found(f"{BUILTIN}{kind}", title, kind, Architecture.from_config(CONFIGS[kind]))


def named(text: str, cached: tuple[Found, ...] = ()) -> Found:
    """Return the model that a user names: a folder, ``hf:ORG/NAME@REVISION`` or a built-in one.

    Args:
        cached: models of the Hugging Face cache, as :func:`in_hub_cache` finds them.

    Raises:
        ConfigError: there is no such model, or its folder cannot be served.
    """
    kind = text.removeprefix(BUILTIN)
    if kind in CONFIGS:
        return builtin(kind)
    if of_hub := hub_source.parse(text):
        known = next((one.architecture for one in cached if one.title.startswith(f"{of_hub.repository} ")), None)
        source = _accepted(text)
        stored = next((folder for folder, fault in hub_cache.examined(of_hub, None, None) if not fault), None)
        title = f"{text}, {'in the Hugging Face cache' if stored else 'downloaded at the first run'}"
        return Found(source, title, _name(of_hub.repository.partition("/")[2]), known, stored)
    path = Path(text).expanduser().absolute()
    if text.startswith((BUILTIN, hub_source.PREFIX)) or not path.is_dir():
        names = ", ".join(f"{BUILTIN}{name}" for name in CONFIGS)
        looks_of_hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) is not None
        hub = f"hf:{text} for a model of the Hugging Face hub" if looks_of_hub else "hf:ORG/NAME@REVISION"
        raise ConfigError(
            f"There is no model {text}: the folder {path} does not exist." if ":" not in text else f"There is no model {text}.",
            do=f"Give a folder with config.json and safetensors files, {hub}, or {names}.",
            reason="model_missing",
        )
    _accepted(str(path))
    try:
        return _examined(path, _name(path.name))
    except WeightsRefused as error:
        if inside := [one.source for one in in_folder(path)]:
            names = "".join(f"\n  --model {source}" for source in inside[:20])
            raise ConfigError(f"{path} holds {len(inside)} model(s). Name one of them:{names}", reason="model_missing") from None
        raise ConfigError(error.what, look=error.look, do=error.do, reason=error.reason) from None


def in_hub_cache(folder: Path | None = None) -> tuple[Found, ...]:
    """Return the models of the Hugging Face cache that can be served, the latest first. The hub is not contacted.

    Args:
        folder: the cache; None for the one of ``HF_HUB_CACHE`` or ``HF_HOME``, or of the home folder.
    """
    # Here, because the import takes a third of a second.
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = [one for one in scan_cache_dir(folder).repos if one.repo_type == "model"]
    except (CacheNotFound, OSError, ValueError):
        return ()
    found = []
    for repository in sorted(repositories, key=lambda one: -one.last_modified):
        for revision in sorted(repository.revisions, key=lambda one: -one.last_modified):
            title = f"{repository.repo_id} ({storage.size(revision.size_on_disk)}, in the Hugging Face cache)"
            try:
                found.append(_examined(revision.snapshot_path, _name(repository.repo_id.partition("/")[2]), title))
            except WeightsRefused:
                continue
            break
    return tuple(found)


def in_folder(folder: Path) -> Iterator[Found]:
    """Find the models in the folders of ``folder``, by name."""
    for path in sorted(folder.iterdir())[:MAX_FOLDERS]:
        if (path / "config.json").is_file():
            try:
                yield _examined(path, _name(path.name))
            except WeightsRefused:
                continue


def tensor_parallel(found: Found, gpus: int) -> int:
    """Return the most GPUs of one node over which vLLM can spread the model's layers; 1 if its shape is unknown."""
    if found.architecture is None:
        return 1
    for size in range(gpus, 1, -1):
        topology = Topology(tensor_parallel=size, executor="mp", devices_per_node=size)
        if not legality(found.architecture, topology, gpus):
            return size
    return 1


def _examined(path: Path, name: str, title: str = "") -> Found:
    """Return the model of a folder; raise WeightsRefused if it cannot be served."""
    contents = manifest.examine(path)
    title = title or f"{path} ({storage.size(sum(contents.sizes.values()))})"
    return Found(str(path), title, name, Architecture.from_config(contents.config))


def _accepted(source: str) -> str:
    """Return the source; raise ConfigError for one that a configuration cannot hold."""
    try:
        return Model(source=source).source
    except ValidationError as error:
        what = "; ".join(describe(problem, {}) for problem in from_pydantic(error, {}))
        raise ConfigError(f"--model: {what}", do="Give another one, or reach the folder by a link with a plain name.") from None


def _name(text: str) -> str:
    """Return a text as a name under ``models``."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:40].strip("-.") or "model"
