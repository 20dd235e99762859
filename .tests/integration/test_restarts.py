"""Repetitions divided among several starts of one deployment's servers."""

from __future__ import annotations

import pandas as pd

from builders.report_document import Document
from integration.harness import RUN, Checkout
from servemark import verification

# Requests of one load point and its warm-up; each start of a server adds one, the readiness check.
POINT = 7


def test_each_repetition_is_measured_by_servers_of_its_own(checkout: Checkout):
    checkout.keep("a")
    checkout.config["workloads"]["chat"] |= {"concurrency": [2], "repetitions": 3}
    checkout.config["restarts"] = 2

    done = checkout.run()

    assert done.rc == 0, done.text
    checkout.assert_all_dead()
    servers = {name: checkout.attempts(name) for name in ("a", "a+1", "a+2")}
    assert [len(found) for found in servers.values()] == [1, 1, 1]
    assert [list(checkout.points(name)) for name in servers] == [["chat-c2-r1"], ["chat-c2-r2"], ["chat-c2-r3"]]
    rows = checkout.rows().values()
    assert [(row["deployment"], row["repetition"], row["restart"]) for row in rows] == [("a", "1", "0"), ("a", "2", "1"), ("a", "3", "2")]
    document = Document(checkout.report())
    assert [row[3] for row in document.cells("figures") if row[0] == "a"] == ["3/3"]
    assert verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst").wrong == ()

    # Of the first start, only its own repetition is in the ledger under this key.
    del checkout.config["restarts"]
    again = checkout.run()

    assert again.rc == 0, again.text
    assert set(checkout.points("a")) == {"chat-c2-r1", "chat-c2-r2", "chat-c2-r3"} and len(checkout.attempts("a")) == 2
    assert checkout.requests_served("a") == 1 + POINT + 1 + 2 * POINT
    assert set(pd.read_parquet(checkout.results / "measurements.parquet")["restart"]) == {0}
