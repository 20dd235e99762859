"""An archive of two pipeline stages over Ray on two H200 is verified, and its records show what was left behind: nothing."""

import json
import time
from datetime import datetime, timedelta

import pytest

from builders.paths import FIXTURES
from servemark.diagnosis.startup_log import StartupLog
from servemark.verification import verify
from servemark.verification.unpack import unpacked

ARCHIVE = FIXTURES / "archives" / "h200x2-ray-pp2.tar.zst"


@pytest.fixture(scope="module")
def deployment():
    with unpacked(ARCHIVE) as archive:
        yield archive.folder / "deployments" / "ray-pp2"


def test_archive_of_pipeline_stages_over_ray_is_verified():
    found = verify(ARCHIVE)
    assert found.wrong == ()
    assert (found.run, found.measurements, found.figures) == ("ray-pp2", 2, 150)
    assert found.identity == "1e9169305ce034cfe16ea206f9531613c0900cc3a4a40884247f95f4c5d062c7"


def test_every_process_was_stopped_on_request_and_none_was_left(deployment):
    stopped = json.loads((deployment / "stopped.json").read_text())
    assert {daemon["name"] for daemon in stopped["daemons"]} == {"telemetry", "ray-head", "server", "client-server"}
    assert {daemon["why"] for daemon in stopped["daemons"]} == {"stop_requested"}
    assert stopped["leftovers"] == []


def test_server_log_of_pipeline_stages_gives_recorded_phases_that_add_up(deployment, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")  # of the machine that wrote the log
    time.tzset()
    startup = json.loads((deployment / "startup.json").read_text())
    daemons = json.loads((deployment / "stopped.json").read_text())["daemons"]
    (started,) = [datetime.fromisoformat(daemon["started_at"]) for daemon in daemons if daemon["name"] == "server"]
    log = StartupLog()
    log.feed((deployment / "attempts" / "001" / "server.log").read_text())
    phases = log.phases(started, started + timedelta(seconds=startup["seconds_to_health"]))
    monkeypatch.undo()
    time.tzset()
    assert {phase.name: phase.seconds for phase in phases} == {phase["name"]: phase["seconds"] for phase in startup["phases"]}
    assert sum(phase.seconds for phase in phases) == pytest.approx(startup["seconds_to_health"], abs=0.05)
