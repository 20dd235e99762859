"""Write the files of ``servemark init``: rendered, validated as ``servemark check`` does it, then put in place together."""

import contextlib
import json
import os
import re
import secrets
import textwrap
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from servemark.config import paths
from servemark.config.load import load
from servemark.errors import ConfigError, ServemarkError
from servemark.files import storage

WIDTH = 120
"""Characters of a line of comment."""
COLUMN = 32
"""Where a comment behind a value begins."""


def render(template: str, **facts: Any) -> str:
    """Return the text of ``my.yaml`` or ``cluster.yaml``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, not HTML; the filter quotes
    )
    environment.filters["yaml"] = scalar
    text = environment.get_template(f"{template}.j2").render(**facts)
    return "\n".join(line for written in text.split("\n") for line in _laid_out(written))


def _laid_out(line: str) -> list[str]:
    """Return a line with its comment in one column, and a long comment as several lines; ``#   `` begins a command or a path."""
    if line.lstrip().startswith("# ") and not line.lstrip().startswith("#   "):
        indent = line[: len(line) - len(line.lstrip())] + "# "
        if len(line) <= WIDTH:
            return [line]
        wrapper = textwrap.TextWrapper(
            WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        # A command in backticks stays on one line.
        whole = re.sub(r"`[^`]+`", lambda command: command[0].replace(" ", "\0"), line.lstrip()[2:])
        return [part.replace("\0", " ") for part in wrapper.wrap(whole)]
    found = re.fullmatch(r"(.*\S)\s{2,}(# .*)", line)
    return [f"{found[1]:<{COLUMN}} {found[2]}"] if found and found[1].count('"') % 2 == 0 else [line]


def scalar(text: str) -> str:
    """Return a text as YAML: in quotes where YAML would read something else."""
    with contextlib.suppress(yaml.YAMLError):
        if yaml.safe_load(f"key: [{text}]") == {"key": [text]} and text.isprintable() and text == text.strip():
            return text
    return json.dumps(text, ensure_ascii=False)


def refuse_existing(path: Path, do: str) -> None:
    """Raise ConfigError if there is a file or a link of this name."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists, and servemark init overwrites no file.", look=str(path), do=do, reason="file_exists")


def write(output: Path, text: str, cluster: tuple[Path, str] | None, site: str | None) -> None:
    """Validate the files and put them in place; an error or Ctrl-C leaves none of them.

    Args:
        output: the configuration's path.
        text: its content.
        cluster: path and content of a new cluster file.
        site: name of an existing cluster file that the configuration uses.

    Raises:
        ConfigError: a file of one of the names has appeared.
        ServemarkError: ``servemark check`` refuses the files: a defect of servemark.
    """
    files = [*([cluster] if cluster else []), (output, text)]
    drafts = [path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path, _ in files]
    placed: list[Path] = []
    try:
        for draft, (path, content) in zip(drafts, files, strict=True):
            with storage.naming(path):
                draft.parent.mkdir(parents=True, exist_ok=True)
                draft.write_text(content, encoding="utf-8")
        _validate(drafts[-1], str(drafts[0].absolute()) if cluster else site, existing=bool(site and not cluster))
        for draft, (path, _) in zip(drafts, files, strict=True):
            with storage.naming(path):
                _place(draft, path, placed)
        placed.clear()
    finally:
        for path in [*drafts, *placed]:
            path.unlink(missing_ok=True)


def _validate(draft: Path, cluster: str | None, *, existing: bool) -> None:
    try:
        load(draft, cluster, paths.problems)
    except ConfigError as error:
        if existing:
            raise ConfigError(
                f"servemark check refuses the configuration with the existing cluster file. Nothing was written.\n{error.what}",
                do="Correct the cluster file, or give another name with --cluster.",
            ) from None
        raise ServemarkError(
            f"servemark init made files that servemark check refuses. Nothing was written.\n{error.what}",
            do="This is a defect of servemark. Report it with this message, and write the files by hand: config/config.yaml and "
            "config/clusters/slurm.yaml are complete examples.",
            reason="init_defect",
        ) from None


def _place(draft: Path, path: Path, placed: list[Path]) -> None:
    """Give the draft its name unless a file has it, and add that to ``placed``."""
    try:
        os.link(draft, path)
        placed.append(path)
    except FileExistsError:
        refuse_existing(path, "Give another name with --output or --cluster.")
    except OSError:
        # A file system without hard links.
        with open(path, "x", encoding="utf-8") as stream:
            placed.append(path)
            stream.write(draft.read_text(encoding="utf-8"))
