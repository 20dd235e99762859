"""Command line of the router, variables of its replicas, and its own check of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from servemark.launch import command_lines

WORKERS = ["http://127.0.0.1:20001", "http://127.0.0.1:20002"]


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_router_binds_its_address_and_repeats_nothing():
    argv = command_lines.router("py", WORKERS, "10.1.2.3", 20500, 20501)
    assert argv[0] == "py" and Path(argv[1]).name == "run_router.py" and Path(argv[1]).is_file()
    assert (value(argv, "--host"), value(argv, "--port")) == ("10.1.2.3", "20500")
    assert (value(argv, "--prometheus-host"), value(argv, "--prometheus-port")) == ("127.0.0.1", "20501")
    assert argv[argv.index("--worker-urls") + 1 :] == WORKERS
    assert value(argv, "--policy") == "round_robin"
    assert {"--disable-retries", "--disable-circuit-breaker"} <= set(argv)
    assert int(value(argv, "--health-failure-threshold")) == 2**32 - 1


def test_least_requests_policy_ignores_prompts_and_any_threshold():
    argv = command_lines.router("py", WORKERS, "10.1.2.3", 1, 2, routing="least_requests")
    assert value(argv, "--policy") == "cache_aware"
    assert (value(argv, "--balance-abs-threshold"), value(argv, "--balance-rel-threshold")) == ("0", "1.0")
    assert value(argv, "--cache-threshold") == "1.0"


def test_router_chooses_engines_only_if_there_are_several():
    option = "--intra-node-data-parallel-size"
    assert option not in command_lines.router("py", WORKERS, "10.1.2.3", 1, 2)
    argv = command_lines.router("py", WORKERS[:1], "10.1.2.3", 1, 2, engines=4)
    assert value(argv, option) == "4" and argv[argv.index("--worker-urls") + 1 :] == WORKERS[:1]


def test_no_command_line_contains_a_key():
    argv = [*command_lines.router("py", WORKERS, "127.0.0.1", 1, 2), *command_lines.key_arguments()]
    assert "--api-key" not in argv
    assert command_lines.API_KEY not in command_lines.router_environment() | command_lines.key_environment({})


@pytest.mark.parametrize("workers", [[], [WORKERS[0], WORKERS[0]]])
def test_router_needs_distinct_replicas(workers):
    with pytest.raises(ValueError, match=r"\["):
        command_lines.router("py", workers, "127.0.0.1", 1, 2)


def test_middleware_is_in_the_folder_of_pythonpath(monkeypatch):
    module, name = command_lines.MIDDLEWARE.rsplit(".", 1)
    assert f"class {name}:" in (Path(command_lines.key_environment({})["PYTHONPATH"]) / f"{module}.py").read_text()
    assert command_lines.key_arguments() == ["--middleware", command_lines.MIDDLEWARE]


def test_only_replicas_show_health_without_a_key():
    assert "SERVEMARK_HEALTH_WITHOUT_KEY" not in command_lines.key_environment({})
    assert command_lines.key_environment({}, behind_router=True)["SERVEMARK_HEALTH_WITHOUT_KEY"] == "1"


def test_router_uses_no_proxy():
    assert command_lines.router_environment()["NO_PROXY"] == "*"


def test_router_is_not_started_if_a_replica_does_not_respond(monkeypatch, capsys):
    sys.path.insert(0, str(command_lines.MIDDLEWARE_FOLDER.parent))
    try:
        import run_router
    finally:
        sys.path.pop(0)
    assert run_router.requires_key("http://127.0.0.1:1/v1/models") is False
    assert "http://127.0.0.1:1" in capsys.readouterr().err
