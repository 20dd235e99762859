"""The main process tests an endpoint's address, and prints a tunnel command if it cannot connect."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import pytest

from builders.endpoint import FACTS
from servemark.deployment import how_to_use
from servemark.processes import identity


@pytest.fixture
def listening():
    """The port of a server on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def announced(page, port: int) -> dict:
    facts = replace(FACTS, url=f"http://127.0.0.1:{port}", node="localhost")
    page.write_text(how_to_use.page(facts))
    return json.loads(json.dumps({"endpoint": how_to_use.announcement(facts, page)}))


def test_reachable_address_gives_no_warning(tmp_path, listening):
    page = tmp_path / how_to_use.NAME
    line = announced(page, listening)
    before = page.read_text()
    assert how_to_use.check_reach(line) == [] and page.read_text() == before


@pytest.mark.parametrize("line", [{}, {"endpoint": None}, {"text": "READY"}])
def test_other_lines_of_progress_are_ignored(line):
    assert how_to_use.check_reach(line) == []


def test_an_unreachable_address_gets_a_tunnel_through_its_node(tmp_path, closed, listening, monkeypatch):
    monkeypatch.setattr(how_to_use, "SSH_PORT", listening)
    page = tmp_path / how_to_use.NAME
    warning, *way = how_to_use.check_reach(announced(page, closed))
    assert identity.host() in warning and f"127.0.0.1:{closed}" in warning and "refused" in warning
    tunnel = f"ssh -N -L 8000:127.0.0.1:{closed} localhost"
    assert any(tunnel in text for text in way)
    text = page.read_text()
    assert tunnel in text and f"\nssh -N -J alice@LOGIN -L 8000:127.0.0.1:{closed} alice@localhost\n" in text
    assert str(FACTS.key_file) in text


def test_unreachable_node_is_reported_with_a_remedy(tmp_path, closed, monkeypatch):
    monkeypatch.setattr(how_to_use, "SSH_PORT", closed)
    page = tmp_path / how_to_use.NAME
    lines = how_to_use.check_reach(announced(page, closed))
    assert not any("ssh -N" in text for text in lines) and any("`interface`" in text for text in lines)
    assert "`interface`" in page.read_text()


def test_page_of_ended_endpoint_is_not_rewritten(tmp_path, closed):
    page = tmp_path / how_to_use.NAME
    line = announced(page, closed)
    page.unlink()
    assert how_to_use.check_reach(line) and not page.exists()
