"""Refuse what cannot be served; plan the rest."""

from typing import TYPE_CHECKING

from servemark.config.cluster import Site
from servemark.config.expand import Point
from servemark.config.model import Deployment
from servemark.planning.plan_deployment import plan
from servemark.records import EnvironmentCheck, Hardware, Manifest
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name, spec = snakemake.wildcards.deployment, snakemake.params.spec
with stage("plan_deployment", name, snakemake.log[0]) as here:
    planned = plan(
        name,
        Deployment.model_validate(spec["deployment"]),
        spec["trust_remote_code"],
        [Point.model_validate(point) for point in spec["points"]],
        Hardware.read(snakemake.input.hardware),
        EnvironmentCheck.read(snakemake.input.check),
        Manifest.read(snakemake.input.manifest),
        cluster=Site.model_validate(spec["cluster"]) if spec["cluster"] else None,
        inherited=spec["inherited"],
    )
    planned.write(snakemake.output.plan)
    here.progress.say(f"{len(planned.points)} load points, {planned.topology.world_size} ranks")
    for warning in planned.warnings:
        here.progress.say(f"warning: {warning}")
