import contextlib
import socket

import pytest

from servemark.machine import network

HOST = "127.0.0.1"


@pytest.fixture
def taken():
    """A port with a listening program."""
    with socket.create_server((HOST, 0)) as listening:
        yield listening.getsockname()[1]


def server_that_loads(port=0):
    """Return a bound socket like that of a loading vLLM (create_server_socket, vllm/entrypoints/launchers/launcher.py, 0.32.0)."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


def server_that_loads_above(port):
    """Return the same on the next port that no other program has."""
    for number in range(port + 1, port + 20):
        with contextlib.suppress(OSError):
            return server_that_loads(number)
    raise AssertionError(f"no free port above {port}")


def test_port_with_a_listening_program_is_taken(taken):
    assert network.is_taken(HOST, taken)


def test_port_of_a_loading_server_is_taken_until_its_end():
    with server_that_loads() as bound:
        port = bound.getsockname()[1]
        assert network.is_taken(HOST, port)
    assert not network.is_taken(HOST, port)


def test_port_with_closed_connections_is_free():
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        caller = socket.create_connection((HOST, port))
        accepted, _ = server.accept()
        accepted.close()
        caller.close()
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind((HOST, port))
    assert not network.is_taken(HOST, port)


def test_found_ports_are_free_and_distinct(taken, monkeypatch):
    monkeypatch.setattr(network, "PORTS", range(taken, taken + 40))
    with server_that_loads_above(taken) as loading:
        first = network.find_ports(HOST, 3, start=0)
        second = network.find_ports(HOST, 3, start=0)
        assert len({*first, *second, taken, loading.getsockname()[1]}) == 8


def test_server_can_bind_a_reserved_port():
    (port,) = network.find_ports(HOST, 1, start=4000)
    with server_that_loads(port) as server:
        server.listen()
        with socket.create_connection((HOST, port)) as caller:
            accepted, _ = server.accept()
            accepted.sendall(b"x")
            assert caller.recv(1) == b"x"
            accepted.close()


def test_two_searches_do_not_get_the_same_port():
    (port,) = network.find_ports(HOST, 1, start=5000)
    assert not network._reserve(HOST, port), "reserved by the first search"
    with socket.socket() as looking:
        looking.bind((HOST, 0))
        assert not network._reserve(HOST, looking.getsockname()[1]), "another search has bound it"


def test_port_is_found_without_loopback(monkeypatch):
    def shut(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", shut)
    (port,) = network.find_ports(HOST, 1, start=6000)
    assert not network.is_taken(HOST, port)


def test_search_without_a_free_port_fails(taken, monkeypatch):
    monkeypatch.setattr(network, "PORTS", range(taken, taken + 1))
    with pytest.raises(OSError, match=f"{taken}-{taken} .*{HOST}"):
        network.find_ports(HOST, 1, start=5)


def test_ports_are_below_the_ephemeral_range():
    assert network.PORTS.start > 1024 and network.PORTS.stop <= 32768
