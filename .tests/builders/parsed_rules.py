"""The rules as Snakemake parses them.

Parsing changes the interpreter (recursion limit, garbage collection, environment), so ``parsed_rules`` runs it in a separate process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Rule:
    """Properties of one rule.

    Attributes:
        script: name of the script without its folder; None for a target without a script.
        unnamed: number of inputs, outputs and parameters without a name.
        code: the parameter ``code``, a digest of the files that the script depends on; None without it.
    """

    name: str
    documented: bool
    script: str | None
    outputs: int
    unnamed: int
    has_log: bool
    has_benchmark: bool
    code: str | None


def parsed_rules(folder: Path) -> dict[str, Rule]:
    """Return every rule by its name.

    Args:
        folder: an empty folder for Snakemake's files.
    """
    (folder / "config").symlink_to(ROOT / "config")
    done = subprocess.run([sys.executable, __file__], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {fields["name"]: Rule(**fields) for fields in json.loads(done.stdout)}


def _rules() -> list[Rule]:
    from snakemake.api import SnakemakeApi
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import OutputSettings, ResourceSettings, WorkflowSettings
    from snakemake_interface_executor_plugins.settings import ExecMode

    # As in a job, because a main process would claim the folder for a run.
    settings = WorkflowSettings(exec_mode=ExecMode.SUBPROCESS)
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        workflow = api.workflow(ResourceSettings(cores=1), workflow_settings=settings, snakefile=ROOT / "Snakefile")
        return [_described(rule) for rule in workflow._workflow.rules]


def _described(rule) -> Rule:
    unnamed = 0
    for items in (rule.input, rule.output, rule.params):
        ranges = [(begin, begin + 1 if end is None else end) for _, (begin, end) in items._get_names()]
        unnamed += len(items) - sum(end - begin for begin, end in ranges)
    return Rule(
        name=rule.name,
        documented=bool(rule.docstring),
        script=rule.script and Path(rule.script).name,
        outputs=len(rule.output),
        unnamed=unnamed,
        has_log=bool(rule.log),
        has_benchmark=bool(rule.benchmark),
        code=rule.params.get("code"),
    )


if __name__ == "__main__":
    print(json.dumps([asdict(rule) for rule in _rules()]))
