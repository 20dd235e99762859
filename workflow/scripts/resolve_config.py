"""Write the resolved configuration."""

import json
from typing import TYPE_CHECKING

from servemark.records import write_atomically
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("resolve_config", "", snakemake.log[0]):
    write_atomically(snakemake.output.config, json.dumps(snakemake.params.config, indent=2) + "\n")
