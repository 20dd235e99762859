"""What a rule's script gets around its work, and what the stages of a deployment share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servemark.config.load import read_resolved
from servemark.config.model import Config, Timeouts
from servemark.launch import compile_cache
from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.records import Environment, Hardware, Manifest, Plan, Record
from servemark.supervisor import ownership


@dataclass(frozen=True)
class Stage:
    """Progress, log, and the watch that ties the tools of a script to the run; ``deployment``: the folder of the one it works on."""

    progress: Progress
    log: Path
    watch: OwnerWatch
    deployment: Path | None = None

    def write(self, record: Record, path: str) -> None:
        """Write a stage's record; raise TakenOver if another allocation works on the deployment now."""
        self.check()
        record.write(path)

    def check(self) -> None:
        """Raise TakenOver if another allocation works on the deployment now."""
        if self.deployment:
            ownership.check(self.deployment)


@dataclass(frozen=True, kw_only=True)
class StageContext(Stage):
    """The frame of a stage's script, the plan, and the records that it is based on.

    Attributes:
        caches: where compiled code is kept for later starts; None for a start that is to find nothing.
    """

    deployment: Path
    config: Config
    plan: Plan
    environment: Environment
    manifest: Manifest
    hardware: Hardware
    caches: Path | None = None

    @property
    def timeouts(self) -> Timeouts:
        """How long to wait, in seconds."""
        return self.config.timeouts

    @classmethod
    def read(cls, here: Stage, settings: str, plan: str) -> StageContext:
        """Read a deployment's records, in the folder of its run.

        Rules name as input what decides whether they run again. The plan is made from the others, so these exist where it does.

        Args:
            settings: path of the resolved configuration.
            plan: path of the plan, ``results/RUN/deployments/NAME/plan.json``.
        """
        config, planned, run = read_resolved(settings), Plan.read(plan), Path(plan).parents[2]
        hardware = Hardware.read(run / "hardware.json")
        return cls(
            **vars(here),
            config=config,
            plan=planned,
            environment=Environment.read(run / "environments" / planned.environment / "environment.json"),
            manifest=Manifest.read(run / "models" / planned.model / "manifest.json"),
            hardware=hardware,
            caches=compile_cache.place(config, planned, hardware),
        )
