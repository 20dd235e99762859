"""Dependencies and version: the library's imports, pyproject.toml, envs/ and the documents agree."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import servemark
from builders.paths import ROOT

LIBRARY = ROOT / "workflow" / "lib"
# Used without an import: pip builds environments; Snakemake loads pygments and the plugin for jobs on nodes.
NOT_IMPORTED = {"pip", "pygments", "snakemake-executor-plugin-slurm-jobstep"}


def requirements(lines: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-"))]
    return {canonicalize_name(one.name): one for one in found}


DECLARED = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def imported() -> set[str]:
    """Return the distributions that the library imports, without scripts for the model environment's interpreter."""
    own = {path.stem for path in [*LIBRARY.glob("*"), *(ROOT / "plugins").glob("*/src/*")]}
    modules = set()
    for path in [*LIBRARY.rglob("*.py"), *(ROOT / "workflow" / "scripts").glob("*.py")]:
        if "in_model_env" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module).split(".")[0])
    by_module = importlib.metadata.packages_distributions()
    third_party = modules - own - sys.stdlib_module_names
    return {canonicalize_name(by_module[module][0]) for module in third_party}


def test_declared_dependencies_are_the_imported_ones():
    assert imported() == DECLARED.keys() - NOT_IMPORTED


def test_workflow_environment_satisfies_the_declared_versions():
    listed = requirements((ROOT / "envs" / "workflow.in").read_text().splitlines())
    assert listed.keys() == DECLARED.keys()
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "envs" / "workflow.lock").read_text(), re.MULTILINE)
    locked = {name: {version for one, version in pins if canonicalize_name(one) == name} for name in DECLARED}
    assert {name for name, versions in locked.items() if not versions} == set()
    for name, versions in locked.items():
        for version in versions:
            assert DECLARED[name].specifier.contains(version) and listed[name].specifier.contains(version), name


def test_version_stands_only_in_package_and_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == servemark.__version__
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
