"""The router's command line, the doors' variables, and what the counters say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from servemark.launch import command_lines

WORKERS = ["http://127.0.0.1:20001", "http://127.0.0.1:20002"]


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_the_router_binds_what_it_is_told_and_repeats_nothing():
    argv = command_lines.router("py", WORKERS, "10.1.2.3", 20500, 20501)
    assert argv[0] == "py" and Path(argv[1]).name == "run_router.py" and Path(argv[1]).is_file()
    assert (value(argv, "--host"), value(argv, "--port")) == ("10.1.2.3", "20500")
    assert (value(argv, "--prometheus-host"), value(argv, "--prometheus-port")) == ("127.0.0.1", "20501")
    assert argv[argv.index("--worker-urls") + 1 :] == WORKERS
    assert value(argv, "--policy") == "round_robin"
    assert {"--disable-retries", "--disable-circuit-breaker"} <= set(argv)
    assert int(value(argv, "--health-failure-threshold")) == 2**32 - 1


def test_a_router_that_gives_to_the_least_busy_does_so_at_any_difference_and_whatever_the_prompts():
    argv = command_lines.router("py", WORKERS, "10.1.2.3", 1, 2, routing="least_requests")
    assert value(argv, "--policy") == "cache_aware"
    assert (value(argv, "--balance-abs-threshold"), value(argv, "--balance-rel-threshold")) == ("0", "1.0")
    assert value(argv, "--cache-threshold") == "1.0"


def test_the_router_names_one_of_several_engines_of_each_replica_only_where_it_is_told_to():
    option = "--intra-node-data-parallel-size"
    assert option not in command_lines.router("py", WORKERS, "10.1.2.3", 1, 2)
    argv = command_lines.router("py", WORKERS[:1], "10.1.2.3", 1, 2, engines=4)
    assert value(argv, option) == "4" and argv[argv.index("--worker-urls") + 1 :] == WORKERS[:1]


def test_no_command_line_holds_a_key():
    argv = [*command_lines.router("py", WORKERS, "127.0.0.1", 1, 2), *command_lines.key_arguments()]
    assert "--api-key" not in argv
    assert command_lines.API_KEY not in command_lines.router_environment() | command_lines.key_environment({})


@pytest.mark.parametrize("workers", [[], [WORKERS[0], WORKERS[0]]])
def test_replicas_must_be_there_and_differ(workers):
    with pytest.raises(ValueError, match=r"\["):
        command_lines.router("py", workers, "127.0.0.1", 1, 2)


def test_the_middleware_is_where_the_variables_say(monkeypatch):
    module, name = command_lines.MIDDLEWARE.rsplit(".", 1)
    assert f"class {name}:" in (Path(command_lines.key_environment({})["PYTHONPATH"]) / f"{module}.py").read_text()
    assert command_lines.key_arguments() == ["--middleware", command_lines.MIDDLEWARE]


def test_only_replicas_show_their_health_without_a_key():
    assert "SERVEMARK_HEALTH_WITHOUT_KEY" not in command_lines.key_environment({})
    assert command_lines.key_environment({}, behind_router=True)["SERVEMARK_HEALTH_WITHOUT_KEY"] == "1"


def test_proxies_of_the_site_never_see_the_routers_traffic():
    assert command_lines.router_environment()["NO_PROXY"] == "*"


def test_the_launcher_starts_no_router_whose_replicas_do_not_ask_for_a_key(monkeypatch, capsys):
    sys.path.insert(0, str(command_lines.MIDDLEWARE_FOLDER.parent))
    try:
        import run_router
    finally:
        sys.path.pop(0)
    assert run_router.asks_for_key("http://127.0.0.1:1/v1/models") is False
    assert "http://127.0.0.1:1" in capsys.readouterr().err
