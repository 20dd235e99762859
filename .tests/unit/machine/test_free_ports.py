import socket

import pytest

from servemark.machine import free_ports

HOST = "127.0.0.1"


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.create_server((HOST, 0)) as listening:
        yield listening.getsockname()[1]


def server_that_loads(port=0):
    """Bound as vLLM's server is before it listens: create_server_socket in vllm/entrypoints/launchers/launcher.py (0.32.0)."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


def test_a_port_that_somebody_listens_on_is_taken(taken):
    assert free_ports.is_taken(HOST, taken)


def test_a_port_that_a_loading_server_has_bound_is_taken_until_it_ends():
    with server_that_loads() as bound:
        port = bound.getsockname()[1]
        assert free_ports.is_taken(HOST, port)
    assert not free_ports.is_taken(HOST, port)


def test_what_a_server_that_has_just_ended_leaves_is_no_program():
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        caller = socket.create_connection((HOST, port))
        accepted, _ = server.accept()
        accepted.close()
        caller.close()
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind((HOST, port))
    assert not free_ports.is_taken(HOST, port)


def test_ports_that_are_found_are_free_distinct_and_not_found_twice(taken, monkeypatch):
    monkeypatch.setattr(free_ports, "PORTS", range(taken, taken + 40))
    with server_that_loads(taken + 1):
        first = free_ports.find(HOST, 3, start=0)
        second = free_ports.find(HOST, 3, start=0)
    assert len({*first, *second, taken, taken + 1}) == 8


def test_a_server_binds_and_answers_on_a_port_that_was_kept_for_it():
    (port,) = free_ports.find(HOST, 1, start=4000)
    with server_that_loads(port) as server:
        server.listen()
        with socket.create_connection((HOST, port)) as caller:
            accepted, _ = server.accept()
            accepted.sendall(b"x")
            assert caller.recv(1) == b"x"
            accepted.close()


def test_of_two_that_look_at_the_same_port_one_gets_it():
    (port,) = free_ports.find(HOST, 1, start=5000)
    assert not free_ports._reserve(HOST, port), "kept for who was first"
    with socket.socket() as looking:
        looking.bind((HOST, 0))
        assert not free_ports._reserve(HOST, looking.getsockname()[1]), "the other is between its look and its keeping"


def test_a_port_is_found_where_the_way_to_ourselves_is_shut(monkeypatch):
    def shut(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", shut)
    (port,) = free_ports.find(HOST, 1, start=6000)
    assert not free_ports.is_taken(HOST, port)


def test_the_search_goes_around_and_says_when_there_is_none(taken, monkeypatch):
    monkeypatch.setattr(free_ports, "PORTS", range(taken, taken + 1))
    with pytest.raises(OSError, match=f"{taken}-{taken} .*{HOST}"):
        free_ports.find(HOST, 1, start=5)


def test_ports_lie_below_those_that_linux_gives_out_by_chance():
    assert free_ports.PORTS.start > 1024 and free_ports.PORTS.stop <= 32768
