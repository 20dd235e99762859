"""Quote Snakemake's command lines, so that a checkout's folder may have any name."""

import secrets
import shlex
import sys
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins import utils

LINK = Path(".snakemake", "interpreter")


def quote(workdir: Path) -> None:
    r"""Make Snakemake quote its jobs' command lines for the shell, if the path of ``workdir`` or of the interpreter needs it.

    Snakemake 9.27 has two faults. ``script/__init__.py`` and the executors do not quote ``sys.executable``. ``format_cli_value`` quotes by
    ``repr``, which a shell misreads if a path holds ``'``, ``$`` or ``\``. Snakemake offers no other way than to replace it.

    Args:
        workdir: where the run's jobs are started, on this machine or on a node.
    """
    if shlex.quote(str(workdir.absolute())) != str(workdir.absolute()):
        utils.format_cli_value = _format_cli_value
    if shlex.quote(sys.executable) != sys.executable:
        sys.executable = str(interpreter(workdir, Path(sys.executable)))


def interpreter(workdir: Path, python: Path) -> Path:
    """Return a path of the interpreter without special characters: relative to ``workdir``, through a link to its environment."""
    link, target = workdir / LINK, python.parent.parent
    # In a job, ``python`` already is a path through this link.
    if not (link.exists() and link.samefile(target)):
        link.parent.mkdir(exist_ok=True)
        # Jobs on several nodes may do the same at once.
        new = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
        new.symlink_to(target)
        new.replace(link)
    return LINK / python.relative_to(target)


def _format_cli_value(value: Any, quote: bool = False, base64_encode: bool = False) -> str:
    if quote and isinstance(value, str) and not base64_encode and not utils.is_quoted(value):
        return shlex.quote(value)
    return str(_original(value, quote=quote, base64_encode=base64_encode))


_original = utils.format_cli_value
