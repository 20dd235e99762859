"""The manifest of a model directory: every file with its sha256, and what config and safetensors headers state."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from servemark.errors import WeightsRefused
from servemark.records import Manifest, ModelFile
from servemark.weights.architecture import Architecture

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
HEADER_LIMIT = 100_000_000
"""Largest safetensors header in bytes; the limit of the reference implementation."""


def build(name: str, source: str, directory: Path, *, dummy: bool = False) -> Manifest:
    """Hash every file of ``directory`` and count the weights from the safetensors headers; no tensor is loaded.

    Args:
        dummy: the model is served with random weights: those of the directory, if there are any, are no part of it, and
            the parameters are counted from the shape.

    Hidden files and folders (``.cache``, ``.git``) are ignored.

    Raises:
        WeightsRefused: a file is missing, unreadable, truncated, of a refused kind or outside the directory; the
            message names it.
    """
    if not directory.is_dir():
        raise _refuse(
            directory, "There is no such directory.", "weights_missing", "Check the model's source in the config."
        )
    paths = _files(directory, dummy)
    names = set(paths)
    if pickles := sorted(path for path in names if Path(path).suffix.lower() in PICKLE_SUFFIXES):
        raise _refuse(
            directory / pickles[0],
            f"{len(pickles)} file(s) may hold Python pickles, which run code when loaded: {', '.join(pickles[:5])}.",
            "pickle_weights",
            "Use a checkpoint in safetensors form and remove these files.",
        )
    config = read_config(directory)
    if not names.intersection(TOKENIZER_FILES):
        raise _refuse(
            directory / "tokenizer.json",
            "The tokenizer is missing.",
            "tokenizer_missing",
            f"Put one of these beside config.json: {', '.join(TOKENIZER_FILES)}.",
        )
    if dummy:
        weight_bytes, parameters = None, Architecture.from_config(config).parameters().total
    else:
        weight_bytes, parameters = _weights(directory, names)
    files = tuple(ModelFile(path=path, size=size, sha256=_sha256(directory / path)) for path, size in paths.items())
    return Manifest(
        name=name,
        source=source,
        path=str(directory),
        digest=digest(files),
        files=files,
        bytes=sum(file.size for file in files),
        config=config,
        weight_bytes=weight_bytes,
        parameters=parameters,
        load_format="dummy" if dummy else "auto",
    )


def is_weights(path: str) -> bool:
    """Whether a file holds weights, in whatever form, or is the index of such files."""
    return path == INDEX or Path(path).suffix.lower() in {".safetensors", *PICKLE_SUFFIXES}


def loaded(names: Collection[str], shards: Collection[str] | None) -> Collection[str]:
    """The weights that are loaded, where a folder has some twice: those of the index, else all at the top.

    A second form of the same weights lies in ``consolidated*`` (Mistral) or in a folder such as ``original`` (gpt-oss). As vLLM takes them
    (model_loader/default_loader.py; weight_utils.py, filter_duplicate_safetensors_files, 0.25.1 and 0.32.0).
    """
    if shards is not None:
        return shards
    top = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    return [name for name in top if not name.startswith("consolidated")] or top


def _weights(directory: Path, names: set[str]) -> tuple[int, int]:
    """Tensor bytes and parameter count of the checkpoint."""
    _check_index(directory, names)
    weights = sorted(loaded(names, set(shards(directory)) if INDEX in names else None))
    if not weights:
        raise _refuse(
            directory / "model.safetensors",
            "There are no safetensors weights.",
            "weights_missing",
            "Fetch the whole checkpoint, in safetensors form, or say `load_format: dummy` of the model to measure the speed of its "
            "shape with random weights.",
        )
    headers = [_header(directory / path) for path in weights]
    return sum(tensor_bytes for tensor_bytes, _ in headers), sum(parameters for _, parameters in headers)


def digest(files: tuple[ModelFile, ...]) -> str:
    """sha256 over the lines ``path size sha256``, sorted; independent of place, time and order."""
    lines = sorted(f"{file.path} {file.size} {file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """The directory's config.json, whether there are weights or not.

    Raises:
        WeightsRefused: it is missing, unreadable or no JSON object.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise _refuse(
            path, "config.json is missing.", "config_missing", "Fetch the whole checkpoint, config.json included."
        )
    return _read_object(path)


def verify(manifest: Manifest, quick: bool = False) -> None:
    """Compare the manifest's directory with the manifest; modification times play no part.

    Args:
        quick: names and sizes only, and the safetensors headers against the sizes; no hashing.

    Raises:
        WeightsRefused: files were changed, are missing, truncated or extra; the message names each.
    """
    directory = Path(manifest.path)
    found = _files(directory, manifest.load_format == "dummy") if directory.is_dir() else {}
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
                _header(directory / path)
            except WeightsRefused:
                problems.append(f"changed: {path} (its header no longer fits the file)")
    if problems:
        raise WeightsRefused(
            f"The files of model {manifest.name!r} differ from their manifest:\n    " + "\n    ".join(problems),
            look=str(directory),
            do="Restore the files, or delete the manifest and stage the model again to accept them as another model.",
            reason="weights_changed",
        )


def _refuse(path: Path, what: str, reason: str, do: str) -> WeightsRefused:
    return WeightsRefused(f"The model file {path.name} cannot be used: {what}", look=str(path), do=do, reason=reason)


def _files(directory: Path, dummy: bool) -> dict[str, int]:
    """Size by relative path with forward slashes, sorted; hidden names left out, and with ``dummy`` weights."""
    found = sorted(_walk(directory, directory.resolve()))
    return {path: size for path, size in found if not (dummy and is_weights(path))}


def _walk(directory: Path, root: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise _refuse(
            directory, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions."
        ) from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            _check_link(entry, root)
        if entry.is_dir():
            yield from _walk(entry, root, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield f"{prefix}{entry.name}", entry.stat().st_size
        else:
            raise _refuse(entry, "It is neither file nor folder.", "weights_unreadable", "Remove it.")


def _check_link(link: Path, root: Path) -> None:
    target = link.resolve()
    if not target.is_relative_to(root):
        raise _refuse(
            link,
            f"It is a link that leaves the model's directory, to {target}.",
            "link_leaves_directory",
            "Copy the file into the directory (cp -L), so that the manifest speaks of what will be served.",
        )
    if not target.exists():
        raise _refuse(
            link, f"It is a link to {target}, which is not there.", "weights_missing", "Fetch the file again."
        )
    if target.is_dir():
        raise _refuse(link, "It is a link to a folder.", "link_to_folder", "Replace it by the folder itself.")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise _refuse(path, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None
    except ValueError as error:
        raise _refuse(path, f"It is not JSON: {error}.", "weights_broken", "Fetch the file again.") from None
    if not isinstance(data, dict):
        raise _refuse(path, "It is not a JSON object.", "weights_broken", "Fetch the file again.")
    return data


def shards(directory: Path) -> list[str]:
    """The paths of the safetensors files that the directory's index names, sorted.

    Raises:
        WeightsRefused: the index is missing, unreadable or of another form.
    """
    weight_map = _read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise _refuse(directory / INDEX, "It has no weight_map.", "weights_broken", "Fetch the file again.")
    return sorted({str(shard) for shard in weight_map.values()})


def _check_index(directory: Path, names: set[str]) -> None:
    if INDEX not in names:
        return
    if missing := sorted(set(shards(directory)) - names):
        raise _refuse(
            directory / missing[0],
            f"{INDEX} names {len(missing)} shard(s) that are not there: {', '.join(missing)}.",
            "shard_missing",
            "Fetch the missing shards.",
        )


def _header(path: Path) -> tuple[int, int]:
    """Tensor bytes and parameter count of one safetensors file, after checking its header against its size."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise _truncated(path, f"Its header does not fit into its {size} bytes")
            header = json.loads(stream.read(length))
        tensors = [entry for key, entry in header.items() if key != "__metadata__"]
        end = max((entry["data_offsets"][1] for entry in tensors), default=0)
        parameters = sum(_elements(entry) for entry in tensors)
    except OSError as error:
        raise _refuse(path, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise _truncated(path, "Its header is not that of a safetensors file") from None
    if size != 8 + length + end:
        raise _truncated(path, f"Its header asks for {8 + length + end} bytes and it has {size}")
    return end, parameters


def _elements(entry: dict[str, Any]) -> int:
    # Packed 4-bit weights (mxfp4, AWQ, GPTQ) are stored as integers of 8 or 32 bits; they count as stored elements.
    return math.prod(entry["shape"])


def _truncated(path: Path, what: str) -> WeightsRefused:
    return _refuse(path, f"{what}; it is truncated or damaged.", "weights_truncated", "Fetch the file again.")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _refuse(path, f"unreadable: {error.strerror}.", "weights_unreadable", "Check its permissions.") from None
