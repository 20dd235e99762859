"""The manifest of a model directory: every file with its sha256, config.json, and the numbers of the safetensors headers."""

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.errors import WeightsRefused
from servemark.files.content import Hashes
from servemark.progress import Progress
from servemark.records import Manifest, ModelFile
from servemark.weights import folder
from servemark.weights.architecture import Architecture
from servemark.weights.files_read import INDEX, PICKLE_SUFFIXES, TOKENIZER_FILES, counted, left_out, loaded
from servemark.weights.folder import refused, unreadable

_NUMBERED = re.compile(r"(.*)-([0-9]{1,5})-of-([0-9]{1,5})\.safetensors")
HEADER_LIMIT = 100_000_000
"""Largest safetensors header in bytes, the limit of the reference implementation; also of a model's JSON files."""


@dataclass(frozen=True)
class Contents:
    """The contents of a model directory: sizes in bytes by path, config.json, and the weights by the safetensors headers.

    Attributes:
        ignored: paths of weights that vLLM does not load; ``sizes`` leaves them out.
    """

    sizes: Mapping[str, int]
    config: dict[str, Any]
    weight_bytes: int | None
    parameters: int | None
    ignored: tuple[str, ...] = ()


def build(
    name: str, source: str, directory: Path, hashes: Hashes | None = None, progress: Progress | None = None, *, dummy: bool = False
) -> Manifest:
    """Hash every file of ``directory``, after :func:`examine` has accepted it.

    Args:
        hashes: digests that earlier processes remembered, so that a file is read once; None to read every file.
        progress: for the files left out, and for the time that hashing takes.

    Raises:
        WeightsRefused: as of :func:`examine`, or a file of a Hugging Face cache contradicts its name.
    """
    found = examine(directory, dummy=dummy)
    if progress and found.ignored:
        more = f" and {len(found.ignored) - 3} more" if len(found.ignored) > 3 else ""
        progress.say(f"ignored, because vLLM does not load them: {', '.join(found.ignored[:3])}{more}")
    digests = folder.digests(directory, list(found.sizes), hashes, progress)
    files = tuple(ModelFile(path=path, size=size, sha256=digests[path]) for path, size in found.sizes.items())
    for file in files:
        folder.check_blob(directory / file.path, file)
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
        ignored=found.ignored,
    )


def examine(directory: Path, *, dummy: bool = False) -> Contents:
    """List the files of ``directory`` and read the safetensors headers; ignore hidden names and hash nothing.

    Args:
        dummy: for random weights: leave out the directory's weights, and count the parameters from the shape (None if unknown).

    Raises:
        WeightsRefused: a file is missing, unreadable, truncated, of a refused kind or outside the directory.
    """
    if not os.path.isdir(directory):
        do = "Set models.NAME.source to the folder with config.json."
        raise WeightsRefused(f"The folder {directory} does not exist.", look=str(directory), do=do, reason="weights_missing")
    every = folder.listing(directory, dummy)
    listed = shards(directory) if INDEX in every else None
    ignored = left_out(every, listed or ())
    sizes = {path: size for path, size in every.items() if path not in ignored}
    pickles = sorted(path for path in ignored if Path(path).suffix.lower() in PICKLE_SUFFIXES)
    if pickles and not any(path.endswith(".safetensors") for path in sizes):
        what = f"Its weights may be Python pickles, which run code when loaded: {', '.join(pickles[:5])}."
        raise refused(directory / pickles[0], "pickle_weights", what, "Use a checkpoint in safetensors form.")
    config = read_config(directory)
    if not sizes.keys() & set(TOKENIZER_FILES):
        do = f"Put one of these next to config.json: {', '.join(TOKENIZER_FILES)}."
        raise refused(directory / "tokenizer.json", "tokenizer_missing", "The tokenizer is missing.", do)
    if dummy:
        return Contents(sizes, config, None, Architecture.from_config(config).total)
    headers = [read_header(directory / path) for path in _weights(directory, sizes, listed)]
    return Contents(sizes, config, sum(size for size, _ in headers), sum(count for _, count in headers), tuple(sorted(ignored)))


def _weights(directory: Path, names: Collection[str], listed: list[str] | None) -> list[str]:
    """Return the sorted paths of the weights that vLLM loads, after checking that they exist. ``listed``: the shards of the index."""
    if missing := sorted(set(listed or ()) - set(names)):
        what = f"{INDEX} names {len(missing)} missing shard(s): {', '.join(missing)}."
        raise refused(directory / missing[0], "shard_missing", what, "Fetch the missing shards.")
    found = sorted(loaded(names, listed))
    numbered = {(m[1], m[3]) for name in found if listed is None and (m := _NUMBERED.fullmatch(name))}
    every = [f"{stem}-{i:0{len(of)}}-of-{of}.safetensors" for stem, of in numbered for i in range(1, int(of) + 1)]
    if missing := sorted(set(every) - set(found)):
        what = f"{len(missing)} of {len(every)} shards are missing: {', '.join(missing[:5])}."
        raise refused(directory / missing[0], "shard_missing", what, "Fetch the missing shards, and the index.")
    if not found:
        do = "Fetch the whole checkpoint in safetensors form, or set the model's `load_format: dummy` to measure with random weights."
        raise refused(directory / "model.safetensors", "weights_missing", "There are no safetensors weights.", do)
    return found


def weight_bytes(directory: Path) -> int | None:
    """Return the tensor bytes of the weights that vLLM loads: by the safetensors headers, or by the index if no shard is there.

    None: the folder has neither. WeightsRefused: shards are missing, truncated or unreadable.
    """
    names = [path.name for path in directory.glob("*.safetensors")]
    listed = shards(directory) if (directory / INDEX).is_file() else None
    if not names:
        return stated_bytes(directory) if listed else None
    return sum(read_header(directory / name)[0] for name in _weights(directory, names, listed))


def stated_bytes(directory: Path) -> int | None:
    """Return the tensor bytes that the directory's index states; None if it states none."""
    stated = read_object(directory / INDEX).get("metadata")
    size = stated.get("total_size") if isinstance(stated, dict) else None
    return int(size) if isinstance(size, int | float) and size > 0 else None


def digest(files: tuple[ModelFile, ...]) -> str:
    """Return the model's identity: the sha256 of the sorted lines ``path size sha256`` of the files that servers may read."""
    read = counted([file.path for file in files])
    lines = sorted(f"{file.path} {file.size} {file.sha256}\n" for file in files if file.path in read)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """Return the directory's config.json, or raise WeightsRefused."""
    path = directory / "config.json"
    if not os.path.isfile(path):
        raise refused(path, "config_missing", "config.json is missing.", "Fetch the whole checkpoint, config.json included.")
    return read_object(path)


def verify(manifest: Manifest, quick: bool = False, hashes: Hashes | None = None) -> None:
    """Compare the files that servers may read with the manifest, without modification times.

    Args:
        quick: compare names, sizes and the safetensors headers; do not hash.
        hashes: as of :func:`build`.

    Raises:
        WeightsRefused: files were changed, are missing, truncated or extra; the message names each.
    """
    directory, own = Path(manifest.path), {file.path for file in manifest.files}
    found = folder.listing(directory, manifest.load_format == "dummy") if os.path.isdir(directory) else {}
    problems = [f"extra: {path}" for path in sorted(counted(found.keys() - left_out(found, own)) - own)]
    read = counted(own)
    files = [file for file in manifest.files if file.path in read]
    same = [file.path for file in files if found.get(file.path) == file.size]
    digests = {} if quick else folder.digests(directory, same, hashes)
    for file in files:
        path, size = file.path, found.get(file.path)
        if size is None:
            problems.append(f"missing: {path}")
        elif size < file.size:
            problems.append(f"truncated: {path} ({size} of {file.size} bytes)")
        elif size > file.size:
            problems.append(f"changed: {path} ({size} bytes, was {file.size})")
        elif not quick and digests[path] != file.sha256:
            problems.append(f"changed: {path} (same size, other content)")
        elif quick and path.endswith(".safetensors"):
            try:
                read_header(directory / path)
            except WeightsRefused:
                problems.append(f"changed: {path} (its header does not fit the file)")
    if problems:
        raise WeightsRefused(
            f"The files of model {manifest.name!r} differ from their manifest:\n    " + "\n    ".join(problems),
            look=str(directory),
            do="Restore the files. To accept them as another model, delete its manifest.json in results/RUN/models and rerun.",
            reason="weights_changed",
        )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model, or raise WeightsRefused."""
    try:
        if path.stat().st_size > HEADER_LIMIT:
            raise ValueError(f"it has more than {HEADER_LIMIT:,} bytes")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise refused(path, "weights_broken", f"It is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise refused(path, "weights_broken", "It is not a JSON object.")
    return data


def shards(directory: Path) -> list[str]:
    """Return the sorted paths of the safetensors files in the directory's index, or raise WeightsRefused."""
    weight_map = read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise refused(directory / INDEX, "weights_broken", "It has no weight_map.")
    return sorted({str(shard) for shard in weight_map.values()})


def read_header(path: Path) -> tuple[int, int]:
    """Return tensor bytes and parameter count of one safetensors file, after comparing its header with its size.

    Packed 4-bit weights (mxfp4, AWQ, GPTQ) count as the integers of 8 or 32 bits that hold them.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise _truncated(path, f"Its header does not fit into its {size} bytes")
            header = json.loads(stream.read(length))
        tensors = [entry for key, entry in header.items() if key != "__metadata__"]
        end = max((_whole(entry["data_offsets"][1]) for entry in tensors), default=0)
        parameters = sum(math.prod(map(_whole, entry["shape"])) for entry in tensors)
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise _truncated(path, "It has no safetensors header") from None
    if size != 8 + length + end:
        raise _truncated(path, f"Its header describes {8 + length + end} bytes, and it has {size}")
    return end, parameters


def _whole(value: Any) -> int:
    # The format's integers are unsigned and have 64 bits.
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError("not a whole number")
    return value


def _truncated(path: Path, what: str) -> WeightsRefused:
    return refused(path, "weights_truncated", f"{what}; it is truncated or damaged.")
