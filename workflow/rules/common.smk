"""Load the experiment: the validated configuration and helpers for every rule."""

import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(workflow.basedir, folder)) for folder in ("workflow/lib", "plugins/snakemake-executor-plugin-slurm-guarded/src")]

from servemark.config import checks, field_types
from servemark.config.after import EXPORT_NAMES
from servemark.config.load import refuse_unreadable
from servemark.run import code_digest, main_process, scheduled
from servemark.run import serve as serving
from snakemake_executor_plugin_slurm_guarded import quoting

# Snakemake does not need this folder. A killed run would leave it in /tmp.
shutil.rmtree(workflow.snakemake_tmp_dir, ignore_errors=True)

NAME = field_types.NAME_PATTERN.strip("^$")
CHECK = checks.CHECK_PATTERN.strip("^$")
# One start of a deployment.
START = rf"{NAME}(\+[0-9]+)?"

# Without a scheduler all jobs run on this machine.
SCHEDULED = scheduled.is_scheduled(is_main=workflow.is_main_process, jobs=workflow.resource_settings.nodes)


def load_experiment(config, workflow):
    """Return the validated configuration, sweeps applied. In the main process this also claims the checkout."""
    sources = workflow.overwrite_configfiles or ["config/config.yaml"]
    return main_process.load(
        config,
        sources,
        is_main=workflow.is_main_process,
        scheduled=SCHEDULED,
        dry_run=workflow.output_settings.dryrun,
        prepare=quoting.quote,
    )


def refuse_unreadable_configuration(path):
    """Refuse with a message where Snakemake would print a traceback or hang."""
    refuse_unreadable([Path(path)])


def code_of(rule):
    """Return a digest of the code behind a rule's output. The rule runs again when it changes."""
    workflow_folder = Path(workflow.basedir) / "workflow"
    return code_digest.digest(workflow_folder / "scripts" / f"{rule}.py", workflow_folder / "lib")


def settings():
    """Return the path of the resolved configuration, if it exists. The main process writes it before a real run."""
    return str(experiment.settings) if experiment.settings.exists() else []


def required_transport():
    """Return what `require_transport` adds to the verdict of a result from the ledger."""
    wanted = experiment.config.cluster.require_transport if experiment.config.cluster else "any"
    return {} if wanted == "any" else {"require_transport": wanted}
