"""The context of a deployment's stages: that of every stage, and the records of the deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servemark.config.model import Config, Timeouts
from servemark.config.resolved import read_resolved
from servemark.containers import entering
from servemark.deployment.launcher import on_node
from servemark.deployment.stage import Stage
from servemark.errors import StageFailed
from servemark.files.content import Hashes
from servemark.launch import compile_cache
from servemark.records import Container, Dataset, Environment, Hardware, LoadPoint, Manifest, Plan, StagedPrompts


@dataclass(frozen=True, kw_only=True)
class StageContext(Stage):
    """Context of a deployment's stages: its plan, and the records that the plan is based on.

    Attributes:
        caches: folder of the compile caches that later starts use; None for a cold start.
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

    def dataset(self, load: LoadPoint) -> Path | None:
        """Return the staged file of a point's prompts; None for prompts of another kind.

        Raises:
            StageFailed: it is missing, or differs from the planned one.
        """
        if not isinstance(load.prompts, StagedPrompts):
            return None
        record = self.deployment.parents[1] / "datasets" / load.prompts.name / "dataset.json"
        path = Path(Dataset.read(record).path).with_name(f"{load.prompts.sha256}.jsonl")
        if Hashes(self.config.cache, str(path)).of([str(path)]) != [load.prompts.sha256]:
            raise StageFailed(
                f"The staged dataset {load.prompts.name} is missing on this node, or differs from the planned one.",
                look=str(path),
                do=f"Put `cache` on a shared disk. If it is on one, delete {record} and rerun: servemark stages the dataset again.",
                reason="content_changed",
            )
        return path

    def container(self) -> Container | None:
        """Return the image of the environment, with the folders that this deployment's processes read; None if it has none."""
        if self.environment.container is None:
            return None
        model, site = Path(self.manifest.path), self.config.cluster
        stores = {folder for file in self.manifest.files for folder in entering.stores(model / file.path)}
        copies = on_node("local_models", site.local_models) if site and site.local_models else None
        maybe = (copies, self.caches, self.environment.bytecode)
        image = self.environment.container.model_copy(update={"gpus": self.hardware.accelerator == "cuda"})
        return entering.bound(image, [model, *sorted(stores), self.config.cache, *(folder for folder in maybe if folder)])

    @classmethod
    def read(cls, here: Stage, settings: str, plan: str) -> StageContext:
        """Read a deployment's records, in the folder of its run.

        The plan is made from the other records, so they exist if it does.

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
