"""The manifest of a model directory: every file with its sha256, and what config and safetensors headers state."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.errors import WeightsRefused
from servemark.records import Manifest, ModelFile
from servemark.weights.architecture import Architecture
from servemark.weights.headers import HEADER_LIMIT, read_header, refused

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "vocab.json",
    "tiktoken.model",
)
INDEX = "model.safetensors.index.json"
MAX_FILES = 10_000
"""Files and folders of a model. The largest checkpoints have some 200 shards; more is a folder named by mistake."""


@dataclass(frozen=True)
class Contents:
    """What a model directory holds: sizes in bytes by path, config.json, and the weights that its headers state."""

    sizes: Mapping[str, int]
    config: dict[str, Any]
    weight_bytes: int | None
    parameters: int


def build(name: str, source: str, directory: Path, *, dummy: bool = False) -> Manifest:
    """Hash every file of ``directory``, after :func:`examine` has found nothing against it."""
    found = examine(directory, dummy=dummy)
    files = tuple(ModelFile(path=path, size=size, sha256=_sha256(directory / path)) for path, size in found.sizes.items())
    return Manifest(
        name=name,
        source=source,
        path=str(directory),
        digest=digest(files),
        files=files,
        bytes=sum(file.size for file in files),
        config=found.config,
        weight_bytes=found.weight_bytes,
        parameters=found.parameters,
        load_format="dummy" if dummy else "auto",
    )


def examine(directory: Path, *, dummy: bool = False) -> Contents:
    """List ``directory`` and count the weights from the safetensors headers; no tensor is loaded, nothing is hashed.

    Args:
        dummy: the model is served with random weights: those of the directory, if there are any, are no part of it, and
            the parameters are counted from the shape.

    Hidden files and folders (``.cache``, ``.git``) are ignored.

    Raises:
        WeightsRefused: a file is missing, unreadable, truncated, of a refused kind or outside the directory; the
            message names it.
    """
    if not os.path.isdir(directory):
        raise refused(directory, "There is no such directory.", "weights_missing", "Check the model's source in the config.")
    sizes = _files(directory, dummy)
    names = set(sizes)
    if pickles := sorted(path for path in names if Path(path).suffix.lower() in PICKLE_SUFFIXES):
        raise refused(
            directory / pickles[0],
            f"{len(pickles)} file(s) may hold Python pickles, which run code when loaded: {', '.join(pickles[:5])}.",
            "pickle_weights",
            "Use a checkpoint in safetensors form and remove these files.",
        )
    config = read_config(directory)
    if not names.intersection(TOKENIZER_FILES):
        raise refused(
            directory / "tokenizer.json",
            "The tokenizer is missing.",
            "tokenizer_missing",
            f"Put one of these beside config.json: {', '.join(TOKENIZER_FILES)}.",
        )
    if dummy:
        return Contents(sizes, config, None, Architecture.from_config(config).parameters().total)
    return Contents(sizes, config, *_weights(directory, names))


def is_weights(path: str) -> bool:
    """Return whether a file holds weights, in whatever form, or is the index of such files."""
    return path == INDEX or Path(path).suffix.lower() in {".safetensors", *PICKLE_SUFFIXES}


def loaded(names: Collection[str], shards: Collection[str] | None) -> Collection[str]:
    """Return the weights that are loaded, where a folder has some twice: those of the index, else all at the top.

    A second form of the same weights lies in ``consolidated*`` (Mistral) or in a folder such as ``original`` (gpt-oss). As vLLM takes them
    (model_loader/default_loader.py; weight_utils.py, filter_duplicate_safetensors_files, 0.25.1 and 0.32.0).
    """
    if shards is not None:
        return shards
    top = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    return [name for name in top if not name.startswith("consolidated")] or top


def _weights(directory: Path, names: set[str]) -> tuple[int, int]:
    """Return tensor bytes and parameter count of the checkpoint."""
    _check_index(directory, names)
    weights = sorted(loaded(names, set(shards(directory)) if INDEX in names else None))
    if not weights:
        raise refused(
            directory / "model.safetensors",
            "There are no safetensors weights.",
            "weights_missing",
            "Fetch the whole checkpoint, in safetensors form, or say `load_format: dummy` of the model to measure the speed of its "
            "shape with random weights.",
        )
    headers = [read_header(directory / path) for path in weights]
    return sum(tensor_bytes for tensor_bytes, _ in headers), sum(parameters for _, parameters in headers)


def digest(files: tuple[ModelFile, ...]) -> str:
    """Return sha256 over the lines ``path size sha256``, sorted; independent of place, time and order."""
    lines = sorted(f"{file.path} {file.size} {file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """Return the directory's config.json, whether there are weights or not.

    Raises:
        WeightsRefused: it is missing, unreadable or no JSON object.
    """
    path = directory / "config.json"
    if not os.path.isfile(path):
        raise refused(path, "config.json is missing.", "config_missing", "Fetch the whole checkpoint, config.json included.")
    return _read_object(path)


def verify(manifest: Manifest, quick: bool = False) -> None:
    """Compare the manifest's directory with the manifest; modification times play no part.

    Args:
        quick: names and sizes only, and the safetensors headers against the sizes; no hashing.

    Raises:
        WeightsRefused: files were changed, are missing, truncated or extra; the message names each.
    """
    directory = Path(manifest.path)
    found = _files(directory, manifest.load_format == "dummy") if os.path.isdir(directory) else {}
    expected = {file.path: file for file in manifest.files}
    problems = [f"missing: {path}" for path in sorted(expected.keys() - found.keys())]
    problems += [f"extra: {path}" for path in sorted(found.keys() - expected.keys())]
    for path in sorted(expected.keys() & found.keys()):
        size, wanted = found[path], expected[path]
        if size < wanted.size:
            problems.append(f"truncated: {path} ({size} of {wanted.size} bytes)")
        elif size > wanted.size:
            problems.append(f"changed: {path} ({size} bytes, was {wanted.size})")
        elif not quick and _sha256(directory / path) != wanted.sha256:
            problems.append(f"changed: {path} (same size, other content)")
        elif quick and path.endswith(".safetensors"):
            try:
                read_header(directory / path)
            except WeightsRefused:
                problems.append(f"changed: {path} (its header no longer fits the file)")
    if problems:
        raise WeightsRefused(
            f"The files of model {manifest.name!r} differ from their manifest:\n    " + "\n    ".join(problems),
            look=str(directory),
            do="Restore the files, or delete the manifest and stage the model again to accept them as another model.",
            reason="weights_changed",
        )


def _files(directory: Path, dummy: bool) -> dict[str, int]:
    """Return size by relative path with forward slashes, sorted; hidden names left out, and with ``dummy`` weights."""
    found = sorted(_walk(directory, directory.resolve()))
    return {path: size for path, size in found if not (dummy and is_weights(path))}


def _walk(directory: Path, root: Path) -> Iterator[tuple[str, int]]:
    """Yield (path, size) of every file, at most ``MAX_FILES``; a folder is entered once, because links to folders are refused."""
    waiting, count = [directory], 0
    while waiting:
        folder = waiting.pop()
        try:
            for entry in folder.iterdir():
                if entry.name.startswith("."):
                    continue
                count += 1
                if count > MAX_FILES:
                    raise refused(
                        directory,
                        f"It holds more than {MAX_FILES:,} files and folders.",
                        "too_many_files",
                        "Name the folder of the checkpoint alone.",
                    )
                if entry.is_symlink():
                    _check_link(entry, root)
                if entry.is_dir():
                    waiting.append(entry)
                elif entry.is_file():
                    yield entry.relative_to(directory).as_posix(), entry.stat().st_size
                else:
                    raise refused(entry, "It is neither file nor folder.", "weights_unreadable", "Remove it.")
        except OSError as error:
            raise refused(folder, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None


def _check_link(link: Path, root: Path) -> None:
    try:
        link.stat()
    except OSError as error:
        # Path.resolve() tells of a loop up to Python 3.12 only.
        if error.errno == errno.ELOOP:
            raise refused(link, "It is a link that leads back to itself.", "link_loop", "Remove it, or fetch the file again.") from None
    target = link.resolve()
    if not target.is_relative_to(root):
        raise refused(
            link,
            f"It is a link that leaves the model's directory, to {target}.",
            "link_leaves_directory",
            "Copy the file into the directory (cp -L), so that the manifest speaks of what will be served.",
        )
    if not target.exists():
        raise refused(link, f"It is a link to {target}, which is not there.", "weights_missing", "Fetch the file again.")
    if target.is_dir():
        raise refused(link, "It is a link to a folder.", "link_to_folder", "Replace it by the folder itself.")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > HEADER_LIMIT:
            raise ValueError(f"it has more than {HEADER_LIMIT:,} bytes")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise refused(path, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None
    except (ValueError, RecursionError) as error:
        raise refused(path, f"It is not JSON: {error}.", "weights_broken", "Fetch the file again.") from None
    if not isinstance(data, dict):
        raise refused(path, "It is not a JSON object.", "weights_broken", "Fetch the file again.")
    return data


def shards(directory: Path) -> list[str]:
    """Return the paths of the safetensors files that the directory's index names, sorted.

    Raises:
        WeightsRefused: the index is missing, unreadable or of another form.
    """
    weight_map = _read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise refused(directory / INDEX, "It has no weight_map.", "weights_broken", "Fetch the file again.")
    return sorted({str(shard) for shard in weight_map.values()})


def _check_index(directory: Path, names: set[str]) -> None:
    if INDEX not in names:
        return
    if missing := sorted(set(shards(directory)) - names):
        raise refused(
            directory / missing[0],
            f"{INDEX} names {len(missing)} shard(s) that are not there: {', '.join(missing)}.",
            "shard_missing",
            "Fetch the missing shards.",
        )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise refused(path, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None
