"""A command line of the host as one in an image: folders, variables, home."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from servemark.containers.runtimes import RUNTIMES, TMP, Inside, is_below
from servemark.records import Container
from servemark.variables import passed_on

_CODE = Path(__file__).parents[1]


def bound(image: Container, folders: Iterable[str | Path]) -> Container:
    """Return the image with more folders of the host, each at its own path if it exists."""
    binds = dict.fromkeys((*image.binds, *(os.path.abspath(folder) for folder in folders)))
    return image.model_copy(update={"binds": tuple(binds)})


def stores(file: Path) -> Iterator[str]:
    """Yield the folders of a link's targets, such as that of the blobs of a Hugging Face cache; nothing for a file.

    In the image, a relative link begins at the path by which the file is named. So each folder has that path, not the one of ``realpath``.
    """
    place, seen = str(file), set[str]()
    while os.path.islink(place) and place not in seen:
        seen.add(place)
        place = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
        yield os.path.dirname(place)


def enter(
    image: Container, argv: Sequence[str], env: Mapping[str, str], *, given: Iterable[str] = (), folders: Iterable[str | Path] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of the runtime that starts ``argv`` in an image.

    The working folder, the code of servemark, the folder ``results`` and /tmp have the same path inside. Temporary files and HOME are in
    TMPDIR, a private folder.

    Args:
        argv: an absolute interpreter in the image, and its arguments.
        env: the environment of the process as on the host.
        given: names of variables in ``env`` that the image gets; of the others only those that libraries read (variables/passed_on.py).
        folders: further folders of the host.

    Raises:
        OSError: a folder for a bind cannot be made in the image.
    """
    runtime, here = RUNTIMES[image.runtime], Path.cwd()
    home = env.get("TMPDIR") or TMP
    inner = passed_on.into_image(env, given)
    if path := inner.get("PATH") or image.path:
        inner["PATH"] = f"{os.path.dirname(argv[0])}:{path}"
    inner |= {"HOME": home, "TMPDIR": home}
    asked = [bind for bind in image.binds if ":" in bind]
    own = [bind for bind in image.binds if ":" not in bind]
    wanted = [place for folder in (TMP, here, _CODE, here / "results", home, *own, *folders) for place in _places(folder)]
    inside = Inside(argv, inner, _tops(wanted), home, str(here))
    entered = image.model_copy(update={"binds": tuple(asked)})
    runtime.prepare(entered, inside)
    return runtime.command(entered, inside), runtime.environment(env, inside)


def _places(folder: str | Path) -> list[str]:
    """Return the path of a folder, and the one to which its links lead; nothing if it does not exist."""
    path = os.path.abspath(folder)
    return list(dict.fromkeys((path, os.path.realpath(path)))) if os.path.exists(path) else []


def _tops(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that are in no other one, sorted."""
    every = sorted(set(paths))
    return tuple(path for path in every if not any(path != other and is_below(path, other) for other in every))
