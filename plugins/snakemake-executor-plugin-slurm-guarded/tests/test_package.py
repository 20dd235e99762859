"""The package calls hooks before it gives Snakemake the executor; its other modules import no Snakemake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import snakemake_executor_plugin_slurm_guarded as plugin

MODULES = sorted(path.stem for path in Path(plugin.__path__[0]).glob("*.py"))
OF_SNAKEMAKE = {"executor", "quoting", "settings"}


def python(code: str, folder: Path) -> str:
    path = f"import sys; sys.path[:0] = [{str(Path(plugin.__path__[0]).parent)!r}, {str(folder)!r}]\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_modules_import_no_snakemake_or_servemark(tmp_path: Path) -> None:
    modules = ", ".join(sorted({*MODULES} - OF_SNAKEMAKE - {"__init__"}))
    code = f"from {plugin.__name__} import {modules}\n"
    code += "print([m for m in sys.modules if m.startswith(('snakemake.', 'snakemake_interface', 'servemark'))])"
    assert python(code, tmp_path) == "[]\n"


def test_source_names_nothing_of_servemark() -> None:
    assert [path.name for path in Path(plugin.__path__[0]).glob("*.py") if "servemark" in path.read_text()] == []


def test_hooks_run_once_before_the_executor_is_imported(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text("def hello():\n    print('hello')\n")
    info = tmp_path / "greeting-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[{plugin.HOOKS}]\ngreeting = greeting:hello\n")
    code = f"import {plugin.__name__} as plugin\nfrom {plugin.__name__} import states\nprint('imported')\n"
    code += "plugin.Executor, plugin.Executor"
    assert python(code, tmp_path) == "imported\nhello\n"


def test_unknown_name_raises() -> None:
    with pytest.raises(AttributeError):
        _ = plugin.Executioner
