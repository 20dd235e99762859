"""The main Snakemake process: one validated experiment, one owner of the checkout, a summary at the end."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from builders import report_data
from builders.paths import ROOT
from servemark import records
from servemark.config.resolved import read_resolved
from servemark.deployment import attempts
from servemark.files import storage
from servemark.processes import identity
from servemark.processes.identity import OWNER_PROCESS_VARIABLE, myself
from servemark.progress import Progress
from servemark.run import main_process

DEFAULT = ROOT / "config" / "config.yaml"

# An owner process of this machine that is not this process.
HERE = f"1:1@{identity.host()}"


@pytest.fixture
def data():
    return yaml.safe_load(DEFAULT.read_text())


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A fresh working folder; yields the list of exit handlers and runs them after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(OWNER_PROCESS_VARIABLE, HERE)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(sys, "argv", ["snakemake", "--cores", "2"])
    at_exit = []
    monkeypatch.setattr(main_process.atexit, "register", lambda *call: at_exit.append(call))
    limit = sys.getrecursionlimit()
    yield at_exit
    sys.setrecursionlimit(limit)
    for function, *arguments in at_exit:
        function(*arguments)


def owner():
    return Path(".snakemake/servemark-owner.json")


def test_main_process_claims_the_checkout(checkout, data):
    experiment = main_process.load(data, [DEFAULT], is_main=True)
    assert os.environ[OWNER_PROCESS_VARIABLE] == str(myself())
    assert json.loads(owner().read_text())["identity"] == str(myself())
    for function, *arguments in checkout:
        function(*arguments)
    assert not owner().exists()
    assert experiment.folder == Path("results/demo")
    assert set(experiment.points) == {"plain", "ray-tp2"}


def test_points_form_a_chain_in_the_order_they_run(checkout, data):
    experiment = main_process.load(data, [DEFAULT], is_main=False)
    for deployment, chain in experiment.points.items():
        names = [point.name for point in chain]
        assert [experiment.before[deployment, name] for name in names] == [None, *names[:-1]]


def test_resolved_configuration_is_written_when_it_changes(checkout, data):
    experiment = main_process.load(data, [], is_main=True)
    assert read_resolved(experiment.settings) == experiment.config
    os.utime(experiment.settings, (1, 1))
    owner().unlink()
    main_process.load(data, [], is_main=True)
    assert experiment.settings.stat().st_mtime == 1, "unchanged content keeps its time"
    owner().unlink()
    data["timeouts"] = {"start": 7.0}
    main_process.load(data, [], is_main=True)
    assert read_resolved(experiment.settings).timeouts.start == 7.0


def test_sources_of_a_run_hold_the_given_configuration(checkout, data, monkeypatch):
    note = Path("results/demo/sources.json")
    main_process.load(data, [DEFAULT], is_main=True, dry_run=True)
    assert not note.exists(), "a dry run notes nothing"
    main_process.load(data, [DEFAULT], is_main=True)
    noted = records.Sources.read(note)
    assert noted.commit is None and noted.why and [given.text for given in noted.configuration] == [DEFAULT.read_text()]


def leave_a_dead_deployment() -> list[Path]:
    """Write the live records and secrets that a killed run leaves, and last a record that must stay; return their paths."""
    folder = Path("results/demo/deployments/plain")
    attempt = attempts.new(folder)
    left = [*attempts.live_records(folder), attempt / "api-key", attempt / "ray-token", folder / "plan.json"]
    for path in left:
        path.write_text("{}")
    return left


def test_records_and_secrets_of_dead_deployments_are_removed(checkout, data):
    *dead, record = leave_a_dead_deployment()
    main_process.load(data, [], is_main=True)
    assert [path for path in dead if path.exists()] == [] and record.exists()
    *dead, _ = leave_a_dead_deployment()
    for function, *arguments in checkout:
        function(*arguments)
    assert [path for path in dead if path.exists()] == [] and record.exists()


def test_dry_run_claims_writes_and_removes_nothing(checkout, data, monkeypatch):
    left = leave_a_dead_deployment()
    experiment = main_process.load(data, [], is_main=True, dry_run=True)
    assert not experiment.executes
    assert not owner().exists() and not experiment.settings.exists()
    assert all(path.exists() for path in left)


@pytest.mark.parametrize(
    ("before", "kept"),
    [(HERE, True), (None, False), ("1:1@another-machine", False)],
    ids=["of this machine", "none", "of the machine that submitted the job"],
)
def test_job_keeps_its_owner_process(checkout, data, monkeypatch, before, kept):
    monkeypatch.delenv(OWNER_PROCESS_VARIABLE)
    if before:
        monkeypatch.setenv(OWNER_PROCESS_VARIABLE, before)
    main_process.load(data, [], is_main=False)
    assert os.environ[OWNER_PROCESS_VARIABLE] == (before if kept else str(myself()))
    assert not owner().exists() and checkout == []


def test_bad_configuration_ends_the_process_with_its_message(checkout, data, capsys):
    data["deployments"]["plain"]["modle"] = "tiny"
    with pytest.raises(SystemExit) as ended:
        main_process.load(data, [DEFAULT], is_main=True)
    assert ended.value.code == 2
    assert "modle" in capsys.readouterr().err
    assert not owner().exists()


@pytest.mark.parametrize("is_main", [True, False])
def test_cluster_profile_with_an_empty_cluster_is_refused(checkout, data, capsys, is_main):
    with pytest.raises(SystemExit) as caught:
        main_process.load(data | {"cluster": None}, [DEFAULT], is_main=is_main, scheduled=True)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "--config cluster=NAME" in said and "--profile profiles/local" in said
    assert not owner().exists()


@pytest.mark.parametrize(
    ("job", "more", "refused"),
    [
        (None, {}, True),
        (None, {"argv": ["--until", "stage_weights"]}, False),
        (None, {"argv": ["-kU", "build_environment"]}, False),
        (None, {"dry_run": True}, False),
        (None, {"is_main": False}, False),
        ("7", {}, False),
    ],
    ids=["login node", "--until", "-U", "dry run", "job of a rule", "inside a job"],
)
def test_cluster_without_a_scheduler_is_refused_outside_a_job(checkout, data, capsys, monkeypatch, job, more, refused):
    data["cluster"] = str(ROOT / "config" / "clusters" / "slurm.yaml")
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    arguments = {"is_main": True} | more
    sys.argv.extend(arguments.pop("argv", []))
    if not refused:
        assert main_process.load(data, [DEFAULT], **arguments).config.cluster
        return
    with pytest.raises(SystemExit) as caught:
        main_process.load(data, [DEFAULT], **arguments)
    assert caught.value.code == 2 and "--profile slurm" in capsys.readouterr().err


def test_second_run_ends_with_the_name_of_the_first(checkout, data, capsys):
    main_process.load(data, [], is_main=True)
    record = json.loads(owner().read_text())
    owner().write_text(json.dumps({**record, "identity": str(identity.Identity.of(os.getppid())), "pid": os.getppid()}))
    with pytest.raises(SystemExit) as ended:
        main_process.load(data, [], is_main=True)
    assert ended.value.code == 2
    assert f"process {os.getppid()}" in capsys.readouterr().err


def test_locks_of_a_dead_run_are_removed_with_a_message(checkout, data, capsys):
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.input.lock").touch()
    main_process.load(data, [], is_main=True)
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(locks.iterdir())


def test_long_chain_of_points_gets_enough_stack_frames(checkout, data):
    data["workloads"]["chat"]["repetitions"] = 400
    experiment = main_process.load(data, [], is_main=False)
    longest = max(map(len, experiment.points.values()))
    assert longest == 1200 and sys.getrecursionlimit() >= 30 * longest


@pytest.fixture
def handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    logger = logging.getLogger("snakemake.logging")
    filters = list(logger.filters)
    yield
    logger.filters[:] = filters
    for number, handler in before.items():
        signal.signal(number, handler)


def test_points_of_an_earlier_run_count_as_finished(checkout, data, handlers, capsys):
    experiment = main_process.load(data, [], is_main=False)
    folder = experiment.folder / "deployments" / "plain" / "points"
    folder.mkdir(parents=True)
    for point in experiment.points["plain"][:2]:
        (folder / f"{point.name}.json").write_text("{}")
    main_process.begin(experiment)
    main_process.end(experiment, success=True)
    assert "12 load points, 2 of them" in capsys.readouterr().err


def test_run_begins_with_its_size_and_ends_with_its_summary(checkout, data, handlers, capsys):
    experiment = main_process.load(data, [], is_main=False)
    main_process.begin(experiment)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    Progress(experiment.folder / "progress.jsonl", "measure", "plain").say("a word")
    (experiment.folder / "summary.txt").write_text("the table\n")
    main_process.end(experiment, success=True)
    said = capsys.readouterr().err
    first, *_, last = said.splitlines()
    assert all(fact in first for fact in ("demo", "2 deployments", "12 load points", "results/demo/"))
    assert said.index("a word") < said.index("the table") and last == "the table"


def test_only_a_failed_run_ends_with_a_message(checkout, data, capsys):
    experiment = main_process.load(data, [], is_main=False)
    for success in (True, False):
        main_process.end(experiment, success=success)
        assert bool(capsys.readouterr().err) is not success


def test_two_messages_of_snakemake_for_every_job_are_dropped(checkout, data, handlers, caplog, monkeypatch):
    experiment = main_process.load(data, [], is_main=False)
    main_process.begin(experiment)
    logger = logging.getLogger("snakemake.logging")
    with caplog.at_level(logging.INFO, logger="snakemake.logging"):
        for text in ("Select jobs to execute...", "Execute 1 jobs...", "Finished jobid: 3"):
            logger.info(text)
    main_process.end(experiment, success=True)
    assert [record.getMessage() for record in caplog.records] == ["Finished jobid: 3"]


def test_point_that_ended_a_server_is_measured_last(checkout, data):
    names = [point.name for point in main_process.load(data, [DEFAULT], is_main=False).points["plain"]]
    failure = records.Failure(stage="measure", reason="server_died", detail="It died.")
    killer = report_data.invalid(concurrency=4).model_copy(update={"failure": failure, "client_argv": ("vllm", "bench")})
    tried, never = "chat-c4-r1", "chat-c1-r1"
    for name, record in ((tried, killer), (never, killer.model_copy(update={"client_argv": ()}))):
        record.write(Path(f"results/demo/rejected/plain/{name}.1.json"))
    after = [point.name for point in main_process.load(data, [DEFAULT], is_main=False).points["plain"]]
    load = ["chat-c4-r1", "chat-c4-r2"]
    assert after == [*(name for name in names if name not in load), *load], "with its other repetition; the other load keeps its place"


def test_message_about_removed_files_names_kept_measurements(checkout, data, caplog):
    main_process.load(data, [DEFAULT], is_main=False)
    log = logging.getLogger("snakemake.logging")
    with caplog.at_level(logging.INFO, logger="snakemake.logging"):
        log.info("Removing output files of failed job measure since they might be corrupted:\nx")
        log.info("Removing temporary output %s.", "y")
    log.removeFilter(main_process._reassures)
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("Removing output") and first.splitlines()[2].startswith("servemark: ") and second.endswith(" y.")


@pytest.mark.parametrize(("code", "place", "refused"), [
    (errno.EDQUOT, "results/demo", True),
    (errno.EROFS, ".snakemake", True),
    (errno.ENOSPC, "results/cache", True),
    # A read-only shared cache is no reason to refuse: the run can use what it contains.
    (errno.EROFS, "results/cache", False),
])  # fmt: skip
def test_run_is_refused_if_a_disk_is_not_writable(checkout, data, monkeypatch, capsys, code, place, refused):
    def attempt(folder: Path, _size: int) -> OSError | None:
        return OSError(code, os.strerror(code), str(folder)) if Path(place) == folder else None

    monkeypatch.setattr(storage, "_try", attempt)
    if not refused:
        main_process.load(data, [DEFAULT], is_main=True)
        return
    with pytest.raises(SystemExit) as end:
        main_process.load(data, [DEFAULT], is_main=True)
    assert end.value.code == 1
    assert place in capsys.readouterr().err
    assert not Path("results/demo/config.json").exists()


@pytest.mark.parametrize(("code", "printed"), [(errno.EROFS, False), (errno.ENOSPC, True)])
def test_shared_cache_is_named_after_a_failed_run_only_if_it_is_full(checkout, data, monkeypatch, capsys, code, printed):
    experiment = main_process.load(data, [DEFAULT], is_main=True)
    cache = experiment.config.cache

    def attempt(folder: Path, _size: int) -> OSError | None:
        return OSError(code, os.strerror(code), str(folder)) if folder == cache else None

    monkeypatch.setattr(storage, "_try", attempt)
    monkeypatch.setattr(main_process._State, "unfinished", True)
    capsys.readouterr()
    main_process._explain_storage()
    assert (str(cache) in capsys.readouterr().err) is printed


def test_refusing_file_system_gives_message_and_no_traceback(checkout, data, capsys):
    def prepare(folder: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder / ".snakemake"))

    with pytest.raises(SystemExit) as end:
        main_process.load(data, [DEFAULT], is_main=True, prepare=prepare)
    assert end.value.code == 1 and "read-only" in capsys.readouterr().err


def test_folder_with_a_refused_name_is_not_prepared(checkout, data, tmp_path, monkeypatch, capsys):
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path / "a:b")
    prepared = []
    with pytest.raises(SystemExit) as end:
        main_process.load(data, [DEFAULT], is_main=True, prepare=prepared.append)
    assert end.value.code == 2 and prepared == [] and "colon" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_error_of_a_disk_while_parsing_has_no_traceback(checkout, data, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x/config.json")

    monkeypatch.setattr(main_process, "_write_settings", refuse)
    with pytest.raises(SystemExit) as end:
        main_process.load(data, [DEFAULT], is_main=True)
    assert end.value.code == 1 and "x/config.json" in capsys.readouterr().err


def test_record_that_cannot_be_removed_gives_no_traceback(checkout, data, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "ready.json")

    main_process.load(data, [DEFAULT], is_main=True)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "unlink", refuse)
        for function, *arguments in checkout:
            function(*arguments)
    assert "ready.json" in capsys.readouterr().err
