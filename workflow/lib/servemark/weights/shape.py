"""The shape of a model without its weights, for a plan: config.json, and the bytes of the weights as headers, index or hub state them.

A model of the hub needs config.json and the index only. The first look keeps them as ``CACHE/models/hf/ORG--NAME/.shapes/REVISION.json``;
delete that file to follow a branch again.
"""

import json
import os
import re
import reprlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.progress import Progress
from servemark.records import write_atomically
from servemark.weights import hub_cache, hub_refusals, hub_source, hub_token, manifest
from servemark.weights.builtin import CONFIGS
from servemark.weights.files_read import INDEX, loaded
from servemark.weights.hub_source import HubSource

BUILTIN = "builtin:"
ACCEPTED = (
    "a folder with config.json, the path of a config.json, hf:ORG/NAME@REVISION, or the keys of config.json as KEY=VALUE,KEY=VALUE "
    "(docs/how-to/plan.md)."
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100
_OF_HUB = re.compile(r"[\w.-]+/[\w.-]+(@\S+)?")
_BY_HAND = re.compile(r"[a-z_][a-z0-9_.]*=.+", re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """What a plan needs of a model.

    Attributes:
        config: content of config.json.
        weight_bytes: of all tensors; None: only the shape states them.
        source: as the key ``models.NAME.source`` takes it; None for a shape without weights.
    """

    config: dict[str, Any]
    weight_bytes: int | None = None
    source: str | None = None


def read(text: str, cache: Path, hub: Path | None = None) -> Shape:
    """Return the shape of a model: a folder, a config.json, ``hf:ORG/NAME@REVISION``, a built-in model, or ``KEY=VALUE,...``.

    Args:
        cache: folder that keeps what the hub stated.
        hub: a further cache of huggingface_hub.

    Raises:
        WeightsRefused: there is no such model, or it cannot be read.
    """
    try:
        return _found(text, cache, hub)
    except OSError as error:  # a name that is too long, or a folder without permission
        what = f"The model {_SHORT.repr(text)} cannot be read ({error.strerror})."
        raise WeightsRefused(what, do=f"Give {ACCEPTED}", reason="model_unreadable") from None


def _found(text: str, cache: Path, hub: Path | None) -> Shape:
    kind = text.removeprefix(BUILTIN)
    if text.startswith(BUILTIN) and kind in CONFIGS:
        return Shape(CONFIGS[kind], source=text)
    if of_hub := hub_source.parse(text):
        return _of_hub(of_hub, text, cache, hub)
    if is_by_hand(text):
        return Shape(by_hand(text))
    path = Path(os.path.expanduser(text))
    if path.is_file():
        return Shape(manifest.read_object(path))
    if not text or not path.is_dir():
        meant = f"For a model of the hub, write hf:{text}. Else give" if _OF_HUB.fullmatch(text) else "Give"
        raise WeightsRefused(
            f"There is no model {_SHORT.repr(text)}.",
            do=f"{meant} {ACCEPTED}",
            reason="model_missing",
        )
    size = manifest.weight_bytes(path)
    return Shape(manifest.read_config(path), size, str(path.absolute()) if any(path.glob("*.safetensors")) else None)


def is_by_hand(text: str) -> bool:
    """Return whether ``text`` is the keys of a config.json as ``KEY=VALUE,KEY=VALUE``."""
    return _BY_HAND.fullmatch(text) is not None


def by_hand(text: str) -> dict[str, Any]:
    """Return the config.json that ``KEY=VALUE,KEY=VALUE`` states; a dot leads to a key inside (``quantization_config.quant_method``).

    Raises:
        WeightsRefused: a part has no value, or a key has two.
    """
    config: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not value:
            do = "Write KEY=VALUE,KEY=VALUE with the keys of config.json, such as num_hidden_layers=80."
            raise WeightsRefused(f"The part {_SHORT.repr(part.strip())} of MODEL is no KEY=VALUE.", do=do, reason="config_broken")
        *outer, last = key.split(".")
        inside: Any = config
        for name in outer:
            inside = inside.setdefault(name, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or last in inside:
            what = f"MODEL has two values for {key!r}: the second is {_SHORT.repr(value)}."
            raise WeightsRefused(what, do="Give each key once.", reason="config_broken")
        try:
            inside[last] = json.loads(value)
        except (ValueError, RecursionError):
            inside[last] = value
    return config


def _of_hub(source: HubSource, text: str, cache: Path, hub: Path | None) -> Shape:
    kept = cache / "models" / "hf" / source.folder / ".shapes" / f"{quote(source.revision, safe='')}.json"
    if kept.is_file():
        known = manifest.read_object(kept)
        return Shape(known["config"], known["weight_bytes"], text)
    for snapshot in hub_cache.snapshots(source, hub_cache.folders(hub)):
        try:
            return Shape(manifest.read_config(snapshot), manifest.weight_bytes(snapshot), text)
        except WeightsRefused:
            continue
    if hub_token.offline():
        raise hub_cache.in_none(hub_refusals.refused(source, "hub_offline", look=kept), kept.parents[2], hub)
    try:
        shape = _asked(source, text)
    except WeightsRefused as refusal:
        raise hub_cache.in_none(refusal, kept.parents[2], hub) from None
    with storage.naming(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps({"config": shape.config, "weight_bytes": shape.weight_bytes}) + "\n")
    return shape


def _asked(source: HubSource, text: str) -> Shape:
    """Return what the hub states, without retries: a plan ends within seconds."""
    # Here, because the import takes a third of a second.
    from servemark.weights import hub_client

    say = Progress(None, "plan")
    commit, files = hub_client.listing(source, source.revision, say, patient=False)
    wanted = [name for name in ("config.json", INDEX) if name in files]
    with tempfile.TemporaryDirectory(prefix="servemark-") as folder:
        directory = Path(folder)
        hub_client.download(source, commit, directory, wanted, say, lambda: None, patient=False)
        config = manifest.read_config(directory)
        stated = manifest.stated_bytes(directory) if INDEX in files else None
    # Without an index, the sizes of the files: their headers are smaller than a ten-thousandth.
    sizes = [files[name].size for name in loaded(files, None)]
    return Shape(config, stated or sum(sizes) or None, text)
