"""The manifest of a model directory: every file with its sha256, config.json, and the numbers of the safetensors headers."""

import errno
import fnmatch
import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.errors import WeightsRefused
from servemark.records import Manifest, ModelFile
from servemark.weights.architecture import Architecture

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "tekken.json", "vocab.json", "tiktoken.model")
INDEX = "model.safetensors.index.json"
NEVER_READ = (
    "readme*", "license*", "licence*", "notice*", "use_policy*", "*.md", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp",
)  # fmt: skip
"""Files that neither vLLM nor transformers opens: patterns as of fnmatch(3), lower case. The model's own code may read any other file."""
MAX_FILES = 10_000
"""Limit of files and folders of a model. The largest checkpoints have some 200 shards."""
HEADER_LIMIT = 100_000_000
"""Largest safetensors header in bytes, the limit of the reference implementation; also of a model's JSON files."""


@dataclass(frozen=True)
class Contents:
    """The contents of a model directory: sizes in bytes by path, config.json, and the weights by the safetensors headers."""

    sizes: Mapping[str, int]
    config: dict[str, Any]
    weight_bytes: int | None
    parameters: int


def build(name: str, source: str, directory: Path, *, dummy: bool = False) -> Manifest:
    """Hash every file of ``directory``, after :func:`examine` has accepted it."""
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
    """List the files of ``directory`` and read the safetensors headers; ignore hidden names and hash nothing.

    Args:
        dummy: for random weights: leave out the directory's weights, and count the parameters from the shape.

    Raises:
        WeightsRefused: a file is missing, unreadable, truncated, of a refused kind or outside the directory.
    """
    if not os.path.isdir(directory):
        do = "Set models.NAME.source to the folder with config.json."
        raise WeightsRefused(f"The folder {directory} does not exist.", look=str(directory), do=do, reason="weights_missing")
    sizes = _files(directory, dummy)
    if pickles := sorted(path for path in sizes if Path(path).suffix.lower() in PICKLE_SUFFIXES):
        what = f"{len(pickles)} file(s) may hold Python pickles, which run code when loaded: {', '.join(pickles[:5])}."
        do = "Use a checkpoint in safetensors form and remove these files."
        raise refused(directory / pickles[0], "pickle_weights", what, do)
    config = read_config(directory)
    if not sizes.keys() & set(TOKENIZER_FILES):
        do = f"Put one of these next to config.json: {', '.join(TOKENIZER_FILES)}."
        raise refused(directory / "tokenizer.json", "tokenizer_missing", "The tokenizer is missing.", do)
    if dummy:
        return Contents(sizes, config, None, Architecture.from_config(config).parameters().total)
    headers = [read_header(directory / path) for path in _weights(directory, sizes)]
    return Contents(sizes, config, sum(size for size, _ in headers), sum(count for _, count in headers))


def is_weights(path: str) -> bool:
    """Return whether a file holds weights in any form, or is their index."""
    return path == INDEX or Path(path).suffix.lower() in {".safetensors", *PICKLE_SUFFIXES}


def loaded(names: Collection[str], shards: Collection[str] | None) -> Collection[str]:
    """Return the weights that vLLM loads: the shards of the index, else the files at the top of the folder.

    ``consolidated*`` (Mistral) and folders such as ``original`` (gpt-oss) hold a second form of the same weights. Source: vLLM,
    model_loader/default_loader.py and weight_utils.py, filter_duplicate_safetensors_files (0.25.1 and 0.32.0).
    """
    if shards is not None:
        return shards
    top = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    return [name for name in top if not name.startswith("consolidated")] or top


def _weights(directory: Path, names: Collection[str]) -> list[str]:
    """Return the sorted paths of the weights that vLLM loads, after checking that they exist."""
    listed = shards(directory) if INDEX in names else None
    if missing := sorted(set(listed or ()) - set(names)):
        what = f"{INDEX} names {len(missing)} missing shard(s): {', '.join(missing)}."
        raise refused(directory / missing[0], "shard_missing", what, "Fetch the missing shards.")
    if not (found := sorted(loaded(names, listed))):
        do = "Fetch the whole checkpoint in safetensors form, or set the model's `load_format: dummy` to measure with random weights."
        raise refused(directory / "model.safetensors", "weights_missing", "There are no safetensors weights.", do)
    return found


def is_read(path: str) -> bool:
    """Return whether a server may read a file of a model, so that it is a part of the model's identity."""
    name = path.rpartition("/")[2].lower()
    return not any(fnmatch.fnmatchcase(name, pattern) for pattern in NEVER_READ)


def digest(files: tuple[ModelFile, ...]) -> str:
    """Return the model's identity: the sha256 of the sorted lines ``path size sha256`` of the files that servers may read."""
    lines = sorted(f"{file.path} {file.size} {file.sha256}\n" for file in files if is_read(file.path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """Return the directory's config.json, or raise WeightsRefused."""
    path = directory / "config.json"
    if not os.path.isfile(path):
        raise refused(path, "config_missing", "config.json is missing.", "Fetch the whole checkpoint, config.json included.")
    return _read_object(path)


def verify(manifest: Manifest, quick: bool = False) -> None:
    """Compare the files that servers may read with the manifest, without modification times.

    Args:
        quick: compare names, sizes and the safetensors headers; do not hash.

    Raises:
        WeightsRefused: files were changed, are missing, truncated or extra; the message names each.
    """
    directory = Path(manifest.path)
    found = _files(directory, manifest.load_format == "dummy") if os.path.isdir(directory) else {}
    problems = [f"extra: {path}" for path in sorted(found.keys() - {file.path for file in manifest.files}) if is_read(path)]
    for file in filter(lambda file: is_read(file.path), manifest.files):
        path, size = file.path, found.get(file.path)
        if size is None:
            problems.append(f"missing: {path}")
        elif size < file.size:
            problems.append(f"truncated: {path} ({size} of {file.size} bytes)")
        elif size > file.size:
            problems.append(f"changed: {path} ({size} bytes, was {file.size})")
        elif not quick and _sha256(directory / path) != file.sha256:
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


def _files(directory: Path, dummy: bool) -> dict[str, int]:
    """Return size by relative path with forward slashes, sorted, without hidden names and, with ``dummy``, without weights."""
    roots, count, sizes = _roots(directory), 0, {}
    try:
        for folder, folders, names in os.walk(directory, onerror=_fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            entries = [Path(folder, name) for name in (*folders, *names) if not name.startswith(".")]
            count += len(entries)
            if count > MAX_FILES:
                what = f"It holds more than {MAX_FILES:,} files and folders."
                raise refused(directory, "too_many_files", what, "Set the folder of the checkpoint alone.")
            for entry in entries:
                if entry.is_symlink():
                    _check_link(entry, roots)
                if entry.is_file():
                    sizes[entry.relative_to(directory).as_posix()] = entry.stat().st_size
                elif not entry.is_dir():
                    raise refused(entry, "weights_unreadable", "It is neither file nor folder.", "Remove it.")
    except OSError as error:
        raise unreadable(Path(error.filename or directory), error) from None
    return {path: sizes[path] for path in sorted(sizes) if not (dummy and is_weights(path))}


def _roots(directory: Path) -> tuple[Path, ...]:
    """Return the folders into which links may lead: the directory, and for a snapshot in a Hugging Face cache the folder of its blobs.

    The cache has each file once, as ``models--ORG--NAME/blobs/DIGEST``. ``models--ORG--NAME/snapshots/COMMIT/FILE`` is a link to it
    (huggingface_hub/file_download.py).
    """
    root = directory.resolve()
    repository = root.parent.parent
    snapshot = root.parent.name == "snapshots" and repository.name.startswith("models--")
    return (root, (repository / "blobs").resolve()) if snapshot else (root,)


def _fail(error: OSError) -> None:
    raise error


def _check_link(link: Path, roots: tuple[Path, ...]) -> None:
    try:
        link.stat()
    except OSError as error:
        # From Python 3.13 on Path.resolve() does not report a loop.
        if error.errno == errno.ELOOP:
            raise refused(link, "link_loop", "This link leads back to itself.", "Remove it, or fetch the file again.") from None
    target = link.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        what = f"This link points to {target}, outside the model's folder."
        raise refused(link, "link_leaves_directory", what, "Copy the file into the directory (cp -L), so that the manifest covers it.")
    if not target.exists():
        raise refused(link, "weights_missing", f"This link points to {target}, which does not exist.")
    if target.is_dir():
        raise refused(link, "link_to_folder", "This is a link to a folder.", "Replace it by the folder itself.")


def _read_object(path: Path) -> dict[str, Any]:
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
    weight_map = _read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise refused(directory / INDEX, "weights_broken", "It has no weight_map.")
    return sorted({str(shard) for shard in weight_map.values()})


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


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


def refused(path: Path, reason: str, what: str, do: str = "Fetch the file again.") -> WeightsRefused:
    """Return the error of one file of a model."""
    return WeightsRefused(f"The model file {path.name} cannot be used: {what}", look=str(path), do=do, reason=reason)


def unreadable(path: Path, error: OSError) -> WeightsRefused:
    """Return the error of a file or folder that cannot be read."""
    return refused(path, "weights_unreadable", f"it cannot be read ({error.strerror}).", "Check its permissions.")
