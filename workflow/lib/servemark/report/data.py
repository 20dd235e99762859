"""Everything the page shows of one run, gathered before anything is rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servemark.records import (
    Accounting,
    Environment,
    EnvironmentCheck,
    Fabric,
    Hardware,
    Manifest,
    Measurement,
    Plan,
    Startup,
    Stopped,
    Timeline,
)
from servemark.report.attempts_section import Attempt
from servemark.report.distributions import Distribution
from servemark.report.excerpts import Excerpt, Key


@dataclass(frozen=True, kw_only=True)
class PageData:
    """The records of a run.

    ``environments`` and ``checks`` are keyed by environment name, ``manifests`` by model name, ``plans``, ``fabrics``,
    ``startups``, ``stopped`` and ``accounts`` by deployment name. A record that was never written is absent.
    ``measurements`` holds one record a load point, INVALID ones too; ``rejected`` the INVALID attempts that a later attempt
    replaced. ``commit`` says which sources ran, ``commands`` are the shell lines that make the run again.
    ``attempts`` are all starts of deployments; ``distributions`` and ``timelines`` (by deployment and point) those that were
    recorded; ``excerpts`` what a failure's log says around its quoted lines.
    """

    run: str
    config: Mapping[str, Any]
    hardware: Hardware
    environments: Mapping[str, Environment]
    checks: Mapping[str, EnvironmentCheck]
    manifests: Mapping[str, Manifest]
    plans: Mapping[str, Plan]
    startups: Mapping[str, Startup]
    stopped: Mapping[str, Stopped]
    measurements: Sequence[Measurement]
    version: str
    commit: str
    commands: Sequence[str]
    rejected: Sequence[Measurement] = field(default=())
    fabrics: Mapping[str, Fabric] = field(default_factory=dict)
    accounts: Mapping[str, Accounting] = field(default_factory=dict)
    attempts: Sequence[Attempt] = field(default=())
    distributions: Sequence[Distribution] = field(default=())
    timelines: Mapping[tuple[str, str], Timeline] = field(default_factory=dict)
    excerpts: Mapping[Key, Excerpt] = field(default_factory=dict)

    @property
    def deployments(self) -> list[str]:
        """Every deployment that the configuration or any record names, in alphabetical order."""
        asked = self.config.get("deployments") or {}
        return sorted({*asked, *self.plans, *self.startups, *(item.deployment for item in self.measurements)})
