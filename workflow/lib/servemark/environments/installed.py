"""The files of an environment: every file that its interpreter can import or load, with a digest that is the same at every place.

* Folders of packages on the interpreter's ``sys.path`` (site-packages, those of a base environment, of the user): every file
* files that distributions put elsewhere, by their RECORD: libraries, data, programs
* sources of editable installs and folders that a .pth file adds: the packages of the distribution, else every file
* names of conda's packages, which hold libraries outside these folders

Not in the digest: bytecode, what an installer notes about itself, and paths. Two builds of a lock file, at different places, have the
same digest. Start scripts in ``bin/`` hold the path of their interpreter and are left out: servemark starts ``python -m``.
The standard library enters by the interpreter's version.
"""

import csv
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from servemark.files import content, storage
from servemark.files.content import CACHES, VERSION_CONTROL, Hashes
from servemark.progress import Progress

NOTES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json", "RECORD.jws", "RECORD.p7s"})
"""Files of a .dist-info folder that state how, from where and when something was installed."""
_SITES = frozenset({"site-packages", "dist-packages"})
_IMPORTABLE = (".py", ".so")
_GENERATED = "__editable__"
"""Beginning of the files by which setuptools leads to the sources of an editable install. They hold its path."""


@dataclass(frozen=True)
class Interpreter:
    """What an environment's interpreter reports: its version, its distributions (``name==version``), and where it finds modules."""

    python: str
    packages: tuple[str, ...]
    path: tuple[str, ...]


def digest(interpreter: Interpreter, prefix: Path, hashes: Hashes, progress: Progress) -> tuple[str, int]:
    """Return the digest of an environment, and the number of files that it covers.

    Raises:
        OSError: a file cannot be read, for another reason than its permissions.
    """
    listed = dict(_files(interpreter.path))
    paths = list(dict.fromkeys(listed.values()))
    by_path = dict(zip(paths, hashes.of(paths, partial(_tell, progress, prefix)), strict=True))
    hashes.save()
    digests = {name: by_path[path] for name, path in listed.items()}
    digests |= {name: _without_paths(listed[name]) for name, found in digests.items() if found and name.endswith(".pth")}
    if hashes.refused:
        progress.say(
            f"servemark cannot remember the digests of these files ({hashes.refused.strerror or hashes.refused}) and reads all of them "
            "each time. Set `cache` to a folder of your own"
        )
    conda = sorted(path.stem for path in prefix.glob("conda-meta/*.json"))
    parts = {"python": interpreter.python, "files": content.combined(digests.items()), "conda": conda}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(), sum(map(bool, digests.values()))


def _tell(progress: Progress, prefix: Path, read: int) -> None:
    if read:
        progress.waiting(f"hashing the installed files of {prefix}: read {storage.size(read)}", about="hashing")


def _files(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name for the digest and path of each file. The position in ``sys.path`` is in the name: it decides which module is imported."""
    for position, entry in enumerate(path):
        if os.path.isfile(entry):
            yield f"{position}", entry
            continue
        every = list(importlib.metadata.distributions(path=[entry]))
        if os.path.basename(entry) in _SITES:
            yield from _under(entry, _site(entry), f"{position}")
        else:
            yield from _under(entry, _project(entry, _top_level(every), whole_modules=True), f"{position}")
        for one in every:
            yield from _under(entry, _elsewhere(entry, one), f"{position}")
            if source := _editable(one):
                yield from _under(source, _project(source, _top_level([one])), f"editable {one.metadata['Name']}")


def _under(folder: str, names: Iterable[str], label: str) -> Iterator[tuple[str, str]]:
    return ((f"{label}/{name}", os.path.join(folder, name)) for name in names if not content.unread(name))


def _site(folder: str) -> Iterator[str]:
    """Yield the files of a folder of packages; hidden ones too, because wheels keep libraries in folders such as ``.libs``."""
    for name in content.walk(folder, CACHES | VERSION_CONTROL):
        last = os.path.basename(name)
        noted = last in NOTES and os.path.dirname(name).endswith((".dist-info", ".egg-info"))
        if not noted and not name.startswith(_GENERATED) and not name.endswith(".egg-link"):
            yield name


def _elsewhere(folder: str, one: importlib.metadata.Distribution) -> Iterator[str]:
    """Yield the files of a distribution outside its folder of packages, by its RECORD, without start scripts."""
    for row in csv.reader((one.read_text("RECORD") or "").splitlines()):
        if row and row[0].startswith(".."):
            with_path = os.path.join(folder, row[0])
            if not (os.path.basename(os.path.dirname(row[0])) == "bin" and _is_script(with_path)):
                yield row[0]


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return True


def _editable(one: importlib.metadata.Distribution) -> str | None:
    """Return the folder of an editable install's sources (PEP 610), or None."""
    # A broken file leads pip nowhere either.
    with suppress(ValueError, AttributeError):
        noted = json.loads(one.read_text("direct_url.json") or "{}")
        source = unquote(urlsplit(noted.get("url", "")).path)
        if noted.get("dir_info", {}).get("editable") and os.path.isdir(source):
            return source
    return None


def _top_level(every: Iterable[importlib.metadata.Distribution]) -> list[str]:
    return sorted({name for one in every for name in (one.read_text("top_level.txt") or "").split()})


def _project(folder: str, modules: Sequence[str], *, whole_modules: bool = False) -> Iterator[str]:
    """Yield the files of modules in a folder of sources, at its top or in ``src``; every file that is not hidden if one is missing there.

    A folder of sources holds more than modules: builds, tests, results. These do not change what is imported.

    Args:
        whole_modules: the folder is on ``sys.path``, so modules of one file at its top can be imported, whoever owns them.
    """
    walk: Callable[[str], Iterator[str]] = partial(content.walk, skip=CACHES, hidden=False)
    for base in ("", "src"):
        top = sorted(os.listdir(place)) if os.path.isdir(place := os.path.join(folder, base)) else []
        found = {module: [name for name in top if name == module or name.startswith(f"{module}.")] for module in modules}
        if not found or not all(found.values()):
            continue
        names = {name for group in found.values() for name in group}
        names |= {name for name in top if whole_modules and name.endswith(_IMPORTABLE)}
        for name in sorted(names):
            whole = os.path.join(place, name)
            inside = walk(whole) if os.path.isdir(whole) else [""]
            yield from (os.path.normpath(os.path.join(base, name, file)) for file in inside)
        return
    yield from walk(folder)


def _without_paths(path: str) -> str:
    """Return the digest of a .pth file's code. Its other lines name folders, whose files are in the digest."""
    lines = Path(path).read_text(errors="surrogateescape").splitlines()
    code = [line for line in lines if line.startswith(("import ", "import\t"))]
    return hashlib.sha256("\n".join(code).encode(errors="surrogateescape")).hexdigest()
