"""A user's own lock file: its lines, checked before pip reads them.

Each line pins one package, ``name==version`` or ``name @ URL``, with the digests of its wheels. pip's index stays in pip's configuration.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from servemark.errors import EnvironmentRefused
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

SUFFIXES = (".lock", ".txt")
# pip knows more algorithms. uv and pip-compile write this one, and ``wheels.py`` compares files by it.
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
# envs/lock and pip-compile state the Python of their result in a comment.
_PYTHON = re.compile(r"^#.*(?:CPython|with Python) (\d+)\.(\d+)", re.MULTILINE)
_SHOWN = 5


@dataclass(frozen=True)
class OwnLock:
    """The content of a lock file. ``python``: the version that its comment states; None: it states none."""

    packages: tuple[str, ...]
    python: tuple[int, int] | None


def is_path(asked: str) -> bool:
    """Return whether ``lock`` of an environment is a path, not the name of a shipped lock file."""
    return "/" in asked or asked.endswith(SUFFIXES)


def read(path: Path) -> OwnLock:
    """Read a lock file.

    Raises:
        EnvironmentRefused: it cannot be read, is empty, or a line has no digest, no exact version, a secret, or is an option of pip.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", "Set `lock` to the path of a lock file."
        ) from None
    found = list(lines(text))
    faults = [f"{path}:{number}: {fault}" for number, line in found if (fault := _fault(line))]
    if not found:
        faults = [f"{path} lists no package"]
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        what = "\n  ".join(["The lock file cannot be used:", *faults[:_SHOWN]])
        raise _refused(
            f"{what}{more}", "Make it with `envs/lock MY.in -o MY.lock`, which writes the digests (docs/how-to/own-environment.md)."
        )
    python = _PYTHON.search(text)
    packages = tuple(line.split(" --hash=")[0].strip() for _, line in found)
    return OwnLock(packages, (int(python[1]), int(python[2])) if python else None)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each requirement with the number of its first line, its continuation lines joined with a space."""
    begin, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        begin = begin if parts else number
        parts.append(plain.removesuffix("\\").strip())
        if not plain.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield begin, joined
            parts = []
    if joined := " ".join(filter(None, parts)):
        yield begin, joined


def _fault(line: str) -> str | None:
    """Return what is wrong with a requirement, or None."""
    if line.startswith("-"):
        return (
            f"{line.split()[0]} is an option of pip. Put the index into pip's configuration (`pip config set global.extra-index-url URL`)"
        )
    from packaging.requirements import InvalidRequirement, Requirement  # only here: every job imports this module

    requirement, *digests = re.split(r"\s+--hash=", line)
    try:
        package = Requirement(requirement)
    except InvalidRequirement:
        return f"{requirement[:60]!r} is not a requirement such as name==1.2"
    if package.url:
        address = urlsplit(package.url)
        if address.username or address.password:
            return f"the address of {package.name} contains a user name or password"
        if secret := next((name for name, _ in parse_qsl(address.query, keep_blank_values=True) if _is_secret(name)), None):
            return f"the address of {package.name} contains a secret ({secret[:60]!r} in its query), and the archive contains this file"
    elif not re.fullmatch(r"==[^=*,]+", str(package.specifier)):
        return f"{package.name} has no exact version: write {package.name}==VERSION"
    if not digests:
        return f"{package.name} has no digest (--hash=sha256:...)"
    return next(
        (f"{package.name} has a digest that is not sha256:HEX: {digest[:60]}" for digest in digests if not _HASH.fullmatch(digest.strip())),
        None,
    )


def _is_secret(parameter: str) -> bool:
    """Return whether a parameter of an address holds a secret: a token, or the signature of an address that lets its owner in."""
    return looks_secret(parameter) or parameter.lower() in ("sig", "signature")


def _refused(what: str, do: str) -> EnvironmentRefused:
    return EnvironmentRefused(f"{what}.", do=do, reason="lock_file_wrong")
