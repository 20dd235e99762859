"""A digest of the files that decide what a stage writes, as a parameter of its rule: the rule runs again when one of them changes.

Found by following imports from a stage's script on: ``from servemark.records import Plan`` leads to the module that defines ``Plan``.
Modules in :data:`APART` are not followed. Snakemake itself watches a rule's script alone.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

import snakemake_executor_plugin_slurm_guarded as plugin

PACKAGE = "servemark"

# How a stage is run, watched and ended, and its progress.
_AROUND = "run progress errors files processes supervisor deployment.context variables.passed_on"
# Its result reaches a stage as parameters and config.json, which are compared themselves.
_GIVEN = "config"
# How a deployment is started and watched. Its records state what happened, and new code changes none of that.
_LIVE = (
    "launch.command_lines launch.router_command_line launch.api_key nodes machine.addresses deployment.attempts deployment.launcher "
    "deployment.executors deployment.server deployment.watch"
)
# How a model's files are downloaded: they are compared with the hub's digests.
_FETCHED = "weights.hub_client weights.hub_refusals"

APART = tuple(f"{PACKAGE}.{name}" for name in f"{_AROUND} {_GIVEN} {_LIVE} {_FETCHED}".split())
"""Modules and packages that decide nothing of what a stage writes."""
_APART = tuple(f"{name}." for name in APART)

BESIDE = {
    f"{PACKAGE}.report.page": "../../../templates/**/*",
    f"{PACKAGE}.archive.crate": "kinds.yaml",
    f"{PACKAGE}.archive.seal": "README.txt",
    f"{PACKAGE}.diagnosis": "catalogue.yaml",
    f"{PACKAGE}.deployment.how_to_use": "how-to-use.txt",
    f"{PACKAGE}.planning.advice_data": "advice.yaml",
    f"{PACKAGE}.init.write": "*.j2",
    f"{PACKAGE}.environments.check": "../in_model_env/check_environment.py",
    # Not its code: its version is in the plan's options.
    f"{PACKAGE}.launch.random_weights": "../in_model_env/random_weights/*.dist-info/*",
}
"""Files that a module reads or runs without importing them: a pattern, relative to the module's folder."""

_PACKAGES = rf"(?:{PACKAGE}|{plugin.__name__})\b"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_PACKAGES}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+({_PACKAGES}[\w.]*))", re.MULTILINE
)


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
    found, waiting = {script.name: script}, [script]
    while waiting:
        for module in {_defining(*one, library) for one in imports(waiting.pop())}:
            path = _path(module, library)
            if module in found or path is None or f"{module}.".startswith(_APART):
                continue
            found[module] = path
            waiting.append(path)
            if module in BESIDE:
                beside = [match.resolve() for match in path.parent.glob(BESIDE[module]) if match.is_file()]
                found |= {match.relative_to(library.parent.resolve()).as_posix(): match for match in beside}
    return found


@cache
def imports(path: Path) -> tuple[tuple[str, str | None], ...]:
    """Return a module's imports of the package and of the Slurm plugin: (module, name), with None for ``import module``.

    By a pattern, because ``ast`` takes ten times as long at each start of Snakemake. A test compares the two.
    """
    found: list[tuple[str, str | None]] = []
    for module, names, whole in _IMPORT.findall(path.read_text(encoding="utf-8")):
        if whole:
            found.append((whole, None))
        found += [(module, words[0]) for name in re.sub(r"#.*", "", names).strip("() \n").split(",") if (words := name.split())]
    return tuple(found)


def _defining(module: str, name: str | None, library: Path) -> str:
    """Return the module that an import leads to: a submodule, the one from which a package imports the name, or ``module``."""
    if name is None:
        return module
    if _path(f"{module}.{name}", library):
        return f"{module}.{name}"
    path = _path(module, library)
    if path and path.name == "__init__.py":
        for source, passed_on in imports(path):
            if passed_on == name:
                return _defining(source, name, library)
    return module


@cache
def _path(module: str, library: Path) -> Path | None:
    top, *below = module.split(".")
    place = Path(plugin.__path__[0], *below) if top == plugin.__name__ else library.joinpath(top, *below)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
