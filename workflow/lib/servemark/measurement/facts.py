"""What servemark observed of server, client and job while a point ran, in addition to the client's results."""

from __future__ import annotations

from dataclasses import dataclass

from servemark.measurement.silence import INTERRUPTED
from servemark.records import Measurement


@dataclass(frozen=True)
class ServerFacts:
    """Observations during one load point.

    ``same_process``: pid and start time of the server are the same before and after. ``client_exit_code``: None if it did not exit by
    itself. ``interrupted``: what stopped all of them for a time, by Slurm's record or by an earlier verdict.
    """

    same_process: bool
    died: str | None = None
    hung: str | None = None
    client_exit_code: int | None = None
    client_timed_out: bool = False
    interrupted: str | None = None

    @classmethod
    def of(cls, record: Measurement) -> ServerFacts:
        """Return the facts of an earlier measurement, from the reasons in its record."""
        details = {reason.code: reason.detail for reason in record.reasons}
        return cls(
            same_process="server_changed" not in details,
            died=details.get("server_died"),
            hung=details.get("server_hung"),
            client_exit_code=record.client_exit_code,
            client_timed_out="client_timeout" in details,
            interrupted=details.get(INTERRUPTED),
        )
