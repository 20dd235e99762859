"""Digest of the files that decide what a stage writes, as a parameter of its rule: if a file changes, the rule runs again.

The files come from the imports of a stage's script: ``from servemark.records import Plan`` leads to the module that defines ``Plan``.
Modules in :data:`NOT_FOLLOWED` are not followed. Snakemake itself only watches a rule's script.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

import snakemake_executor_plugin_slurm_guarded as plugin

PACKAGE = "servemark"

# Running, watching and ending a stage, and its progress.
_SURROUNDINGS = (
    "run progress errors files.cache_lock files.folder_name files.home files.private files.storage processes containers "
    "supervisor deployment.context deployment.stage variables.passed_on"
)
# A stage gets its result as parameters and config.json, which Snakemake compares.
_CONFIGURATION = "config"
# Starting and watching a deployment: new code does not change what its records report.
_LIVE_DEPLOYMENT = (
    "launch.command_lines nodes machine.network deployment.attempts deployment.launcher "
    "deployment.executors deployment.server deployment.watch"
)
# Descriptions that vLLM itself makes and checks, and whose lack changes nothing.
# Downloading a model's files, which are compared with the hub's digests, and wheels, which are compared with the lock file's.
_DESCRIPTIONS = "environments.model_classes"
_DOWNLOADS = "weights.hub_client weights.hub_refusals weights.hub_token environments.wheels"

NOT_FOLLOWED = tuple(
    f"{PACKAGE}.{name}" for name in f"{_SURROUNDINGS} {_CONFIGURATION} {_LIVE_DEPLOYMENT} {_DESCRIPTIONS} {_DOWNLOADS}".split()
)
"""Modules and packages that do not decide what a stage writes."""
_NOT_FOLLOWED = tuple(f"{name}." for name in NOT_FOLLOWED)

DATA_FILES = {
    f"{PACKAGE}.report.page": "../../../templates/**/*",
    f"{PACKAGE}.containers.runtimes": "enroot-rc.sh",
    f"{PACKAGE}.archive.crate": "kinds.yaml",
    f"{PACKAGE}.archive.seal": "README.txt",
    f"{PACKAGE}.diagnosis": "*.yaml",
    f"{PACKAGE}.measurement.reasons": "reasons.yaml",
    f"{PACKAGE}.deployment.how_to_use": "how-to-use.txt",
    f"{PACKAGE}.planning.advice_data": "advice.yaml",
    f"{PACKAGE}.planning.devices": "devices.yaml",
    f"{PACKAGE}.init.write": "*.j2",
    f"{PACKAGE}.environments.check": "../in_model_env/check_environment.py",
    f"{PACKAGE}.environments.known_options": "../in_model_env/list_options.py vllm-options/*.json",
    # Only its version, which is in the plan's options.
    f"{PACKAGE}.launch.random_weights": "../in_model_env/random_weights/*.dist-info/*",
}
"""Files that a module reads or runs without an import: patterns relative to the module's folder."""

_PACKAGES = rf"(?:{PACKAGE}|{plugin.__name__})\b"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_PACKAGES}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+({_PACKAGES}[\w.]*))", re.MULTILINE
)


def digest(script: Path, library: Path) -> str:
    """Return the sha256 (hex, 16 digits) of the names and contents of :func:`files`."""
    found = hashlib.sha256()
    for name, path in sorted(files(script, library).items()):
        found.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def files(script: Path, library: Path) -> dict[str, Path]:
    """Return the paths of a stage's script (``workflow/scripts/RULE.py``) and of its dependencies, by module or file name.

    ``library``: the folder of the package, ``workflow/lib``.
    """
    found, waiting = {script.name: script}, [script]
    while waiting:
        for module in {_defining(*one, library) for one in imports(waiting.pop())}:
            path = _path(module, library)
            if module in found or path is None or f"{module}.".startswith(_NOT_FOLLOWED):
                continue
            found[module] = path
            waiting.append(path)
            if module in DATA_FILES:
                matches = [match for pattern in DATA_FILES[module].split() for match in path.parent.glob(pattern)]
                data_files = [match.resolve() for match in matches if match.is_file()]
                found |= {match.relative_to(library.parent.resolve()).as_posix(): match for match in data_files}
    return found


@cache
def imports(path: Path) -> tuple[tuple[str, str | None], ...]:
    """Return a module's imports of the package and of the Slurm plugin: (module, name), with None for ``import module``.

    It uses a pattern, because ``ast`` takes ten times as long at each start of Snakemake. A test compares both.
    """
    found: list[tuple[str, str | None]] = []
    for module, names, whole in _IMPORT.findall(path.read_text(encoding="utf-8")):
        if whole:
            found.append((whole, None))
        found += [(module, words[0]) for name in re.sub(r"#.*", "", names).strip("() \n").split(",") if (words := name.split())]
    return tuple(found)


def _defining(module: str, name: str | None, library: Path) -> str:
    """Return the module that defines an imported name: a submodule, the module from which a package imports it, or ``module``."""
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
