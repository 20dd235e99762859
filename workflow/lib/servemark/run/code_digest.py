"""Which files of the workflow decide what a stage writes, and the digest that lets Snakemake see when they change.

Found by reading imports, from a stage's script on: ``from servemark.records import Plan`` leads to the module that defines ``Plan``. The
walk ends at :data:`APART`. Snakemake knows of a rule its script alone; the digest is a parameter of the rule, and so a change of any
of these files makes the rule run again, and a change of another one does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import snakemake_executor_plugin_slurm_guarded as plugin

PACKAGE = "servemark"

# How a stage is run, watched and ended, and what it prints meanwhile.
_AROUND = "run progress errors files processes supervisor deployment.context variables.passed_on"
# What it makes of the configuration, a stage is given as parameters and config.json, which are compared themselves.
_GIVEN = "config"
# How a deployment is brought up, found and watched. Its records state what happened, and new code changes none of that.
_LIVE = (
    "launch.command_lines launch.router_command_line launch.api_key nodes machine.addresses deployment.attempts deployment.launcher "
    "deployment.executors deployment.server deployment.watch"
)
# How a model's files come here: they are compared with what the hub states of them.
_FETCHED = "weights.hub_client weights.hub_refusals"

APART = frozenset(f"{PACKAGE}.{name}" for name in f"{_AROUND} {_GIVEN} {_LIVE} {_FETCHED}".split())
"""Modules, and packages with all that is in them, that decide nothing of what a stage writes."""

BESIDE = {
    f"{PACKAGE}.report.page": "../../../templates/**/*",
    f"{PACKAGE}.diagnosis": "catalogue.yaml",
    f"{PACKAGE}.planning.advice_data": "advice.yaml",
    f"{PACKAGE}.environments.check": "../in_model_env/check_environment.py",
    # Not the code beside them: what it draws has a version, which stands in the plan's options.
    f"{PACKAGE}.launch.random_weights": "../in_model_env/random_weights/*.dist-info/*",
}
"""Files that a module reads or runs without importing them: a pattern, relative to the module's folder."""

_PACKAGES = rf"(?:{PACKAGE}|{plugin.__name__})\b"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_PACKAGES}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+({_PACKAGES}[\w.]*))",
    re.MULTILINE,
)


class _Import(NamedTuple):
    module: str
    name: str | None


def digest(script: Path, library: Path) -> str:
    """Return the sha256 (hex, shortened) of the contents and names of :func:`files`."""
    found = hashlib.sha256()
    for name, path in sorted(files(script, library).items()):
        found.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def files(script: Path, library: Path) -> dict[str, Path]:
    """Return the script and what it depends on: module or file name -> path.

    Args:
        script: a stage's, ``workflow/scripts/RULE.py``.
        library: the folder that holds the package, ``workflow/lib``.
    """
    found = {script.name: script}
    waiting = list(_reached(imports(script), library))
    while waiting:
        module = waiting.pop()
        path = _path(module, library)
        if module in found or path is None or _apart(module):
            continue
        found[module] = path
        if module in BESIDE:
            beside = [match.resolve() for match in path.parent.glob(BESIDE[module]) if match.is_file()]
            found |= {match.relative_to(library.parent.resolve()).as_posix(): match for match in beside}
        waiting += _reached(imports(path), library)
    return found


@cache
def imports(path: Path) -> tuple[_Import, ...]:
    """Return what a module imports of the package and of the Slurm plugin, wherever in it; ``name`` is None for ``import module``.

    By a pattern and not by ``ast``, which takes ten times as long, at each start of Snakemake. That both find the same is tested.
    """
    return tuple(_parse(path.read_text(encoding="utf-8")))


def _parse(text: str) -> Iterator[_Import]:
    for module, names, whole in _IMPORT.findall(text):
        if whole:
            yield _Import(whole, None)
        for name in re.sub(r"#.*", "", names).strip("() \n").split(","):
            if words := name.split():
                yield _Import(module, words[0])


def _reached(found: Iterable[_Import], library: Path) -> set[str]:
    return {_defining(one, library) for one in found}


def _defining(wanted: _Import, library: Path) -> str:
    """Return the module that an import is about: a submodule, the one that a package takes the name from, or the one that is named."""
    module, name = wanted
    if name is None:
        return module
    if _path(f"{module}.{name}", library):
        return f"{module}.{name}"
    path = _path(module, library)
    if path and path.name == "__init__.py":
        for passed_on in imports(path):
            if passed_on.name == name:
                return _defining(passed_on, library)
    return module


def _apart(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in APART for count in range(2, len(parts) + 1))


@cache
def _path(module: str, library: Path) -> Path | None:
    top, *below = module.split(".")
    place = Path(plugin.__path__[0], *below) if top == plugin.__name__ else library.joinpath(top, *below)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
