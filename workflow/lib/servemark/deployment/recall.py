"""Take a measurement from the ledger, and judge it again."""

from dataclasses import replace

from servemark.config.model import Config
from servemark.deployment import transport
from servemark.measurement import verdict
from servemark.measurement.ledger import PASSING, Ledger, StoredMeasurement
from servemark.measurement.raw import read_raw
from servemark.measurement.verdict import ServerFacts
from servemark.records import Measurement, Plan, PlannedPoint


def recalled(ledger: Ledger, point: PlannedPoint, plan: Plan, config: Config) -> tuple[Measurement, StoredMeasurement] | None:
    """Return the stored measurement of a point, with the names of deployment and point, or None without one."""
    stored = ledger.find(point.key)
    if stored is None:
        return None
    # Thresholds are not in the ledger key, so a stored measurement is judged again.
    facts = replace(ServerFacts.of(stored.record), client_exit_code=0)
    # The ledger key does not contain the transport. A deployment with another one than required is not started.
    if facts.slow_transport is None and config.cluster:
        wanted = config.cluster.require_transport
        facts = replace(facts, slow_transport=transport.unmet(wanted, stored.record.transport_kind, plan.topology))
    judgement = verdict.judge(read_raw(stored.raw), point.load, config.verdict, facts)
    if any(reason.code in PASSING for reason in judgement.reasons):
        # Stored before this check existed: remove it, so that the point is measured again.
        ledger.forget(point.key, stored.record.raw_sha256)
        return None
    names = {"deployment": plan.deployment, "load": point.load}
    return verdict.judged(stored.record.model_copy(update=names), judgement), stored
