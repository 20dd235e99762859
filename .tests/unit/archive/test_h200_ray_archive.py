"""An archive of two pipeline stages over Ray on two H200 is verified, and its records show what was left behind: nothing."""

import json

import pytest

from builders.paths import FIXTURES
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


def test_start_up_phases_of_pipeline_stages_add_up(deployment):
    startup = json.loads((deployment / "startup.json").read_text())
    assert sum(phase["seconds"] for phase in startup["phases"]) == pytest.approx(startup["seconds_to_health"], abs=0.05)
