"""An endpoint, for the text about its use."""

from __future__ import annotations

from servemark.deployment import how_to_use

RUN, NAME = "demo", "plain"
FACTS = how_to_use.Facts(
    run=RUN,
    deployment=NAME,
    url="http://10.1.0.7:20003",
    served_name="tiny",
    key_file="/shared/my results/api-key",
    node="node07",
    user="alice",
    checkout="/shared/checkout",
    scheduled=True,
    ends_at=1_800_000_000.0,
)
