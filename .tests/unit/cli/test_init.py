"""``servemark init``: the files it writes, what it refuses, and its questions at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from builders import hub_cache
from builders.paths import ROOT
from builders.recorded_site import BODIES, SILENT, only
from servemark.cli import main as cli
from servemark.config.load import load
from servemark.files import storage
from servemark.init import machine, write
from servemark.records import Gpu
from servemark.weights import builtin
from snakemake_executor_plugin_slurm_guarded import journal


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """The working folder, with locks and an empty Hugging Face cache, and without Slurm's commands."""
    folder = tmp_path / "checkout"
    (folder / "config" / "clusters").mkdir(parents=True)
    (folder / "envs").symlink_to(ROOT / "envs")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(journal.VARIABLE, "")  # the command sets it
    for name in (*machine.PLACES, "LOADEDMODULES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("servemark.init.models.in_hub_cache", lambda: ())
    only(tmp_path / "bin", monkeypatch, {})
    return folder


@pytest.fixture
def site(checkout, tmp_path, monkeypatch) -> Path:
    only(tmp_path / "slurm", monkeypatch, BODIES)
    return checkout


@pytest.fixture
def gpus(monkeypatch) -> None:
    real = machine.hardware.probe()
    found = real.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="NVIDIA H200", memory_mib=143_771),) * 2, "driver": "580.1"})
    monkeypatch.setattr(machine.hardware, "probe", lambda: found)


def init(*arguments: str) -> int:
    return cli.main(["init", "--yes", *arguments])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "envs" not in path.parts}


def written(path: str = "my.yaml") -> dict:
    return yaml.safe_load(Path(path).read_text())


def test_machine_without_gpu_gets_the_tiny_model_on_the_cpu(checkout, capsys):
    assert init() == 0
    assert files(checkout) == {"my.yaml"}
    config = load(Path("my.yaml"))
    assert config.cluster is None and config.models["tiny-dense"].source == "builtin:tiny-dense"
    assert [one.lock for one in config.environments.values()] == ["cpu"]
    (deployment,) = config.deployments.values()
    assert (deployment.topology.world_size, deployment.options["max-model-len"]) == (1, 512)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[-3:]] == [".venv/bin/servemark", *[".venv/bin/snakemake"] * 2]
    assert "profiles/local" in out.splitlines()[-1] and out.splitlines()[-2].count(" -n ") == 1


def test_machine_with_gpus_gets_tensor_parallel_over_them(checkout, gpus):
    builtin.make("tiny-moe", checkout / "models" / "Big")
    assert init("--model", "models/Big", "--output", "sub/other.yaml") == 0
    config = load(Path("sub/other.yaml"))
    assert (config.run, config.models["big"].source) == ("big", str(checkout / "models" / "Big"))
    assert [one.lock for one in config.environments.values()] == ["auto"]
    assert config.deployments["tp2"].topology.tensor_parallel == 2
    assert config.workloads["chat"].concurrency == (8, 32, 128)


def test_every_value_of_the_files_has_a_comment_and_short_lines(site):
    assert init() == 0
    for path in (Path("my.yaml"), Path("config/clusters/sandbox.yaml")):
        lines = path.read_text().splitlines()
        assert max(map(len, lines)) <= 120 and sum("#" in line for line in lines) >= 0.4 * len([line for line in lines if line])


def test_slurm_gets_a_cluster_file_from_what_it_lists(site, capsys):
    assert init() == 0
    assert files(site) == {"my.yaml", "config/clusters/sandbox.yaml"}
    config = load(Path("my.yaml"))
    cluster = config.cluster
    assert cluster and (cluster.account, cluster.partition, cluster.gpus_per_node, cluster.max_minutes) == ("research", "batch", 4, 60)
    assert config.deployments["tp4"].topology.tensor_parallel == 4
    text = Path("config/clusters/sandbox.yaml").read_text()
    assert "teaching" in text and "# interface: " in text and "# modules: " in text
    out = capsys.readouterr().out
    assert "--profile slurm" in out.splitlines()[-1]
    assert cli.main(["check", "my.yaml"]) == 0


def test_folders_and_loaded_modules_are_in_the_cluster_file(site, monkeypatch, tmp_path):
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("LOADEDMODULES", "slurm/22:gcc/13.2")
    monkeypatch.setattr("servemark.init.site.SPACE", 0)
    assert init("--cluster", "here") == 0
    cluster = load(Path("my.yaml")).cluster
    assert cluster and (cluster.modules, cluster.cache) == (("gcc/13.2",), tmp_path / "project" / "servemark-cache")


@pytest.mark.parametrize("cluster", [None, "here"])
def test_silent_slurm_leaves_a_configuration_for_this_machine(checkout, tmp_path, monkeypatch, capsys, cluster):
    only(tmp_path / "silent", monkeypatch, dict.fromkeys(BODIES, SILENT))
    assert init(*(["--cluster", cluster] if cluster else [])) == (2 if cluster else 0)
    assert files(checkout) == (set() if cluster else {"my.yaml"})


def test_existing_cluster_file_is_used_and_kept(site):
    path = Path("config/clusters/sandbox.yaml")
    path.write_text("scheduler: slurm\ngpus_per_node: 2\n")
    assert init() == 0
    assert path.read_text() == "scheduler: slurm\ngpus_per_node: 2\n"
    assert load(Path("my.yaml")).deployments["tp2"].topology.tensor_parallel == 2


def test_wrong_existing_cluster_file_is_named(site, capsys):
    Path("config/clusters/sandbox.yaml").write_text("scheduler: slurm\npartion: batch\n")
    assert init() == 2
    assert "config/clusters/sandbox.yaml:2: " in capsys.readouterr().err and files(site) == {"config/clusters/sandbox.yaml"}


def test_cluster_named_slurm_does_not_get_the_example_file(checkout, tmp_path, monkeypatch):
    scontrol = BODIES["scontrol"].replace("= sandbox", "= slurm")
    only(tmp_path / "slurm", monkeypatch, BODIES | {"scontrol": scontrol})
    Path("config/clusters/slurm.yaml").write_text("scheduler: slurm\n")
    assert init() == 0
    assert written()["cluster"] == "my-cluster"


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_existing_configuration_is_refused_and_kept(site, capsys, kind):
    path = Path("my.yaml")
    if kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    assert init() == 2
    err = capsys.readouterr().err
    assert "my.yaml" in err and "--output other.yaml" in err
    assert path.is_symlink() or path.read_text() == "mine"
    assert files(site) <= {"my.yaml"}


@pytest.mark.parametrize(
    "arguments", [("--model", "/nowhere"), ("--model", "hf:bad"), ("--cluster", "../x"), ("--cluster", "nowhere"), ("--cluster", "")]
)
def test_wrong_argument_writes_nothing(checkout, arguments, capsys):
    assert init(*arguments) == 2
    assert files(checkout) == set() and arguments[1] in capsys.readouterr().err


def test_without_a_terminal_the_defaults_need_yes(checkout, capsys):
    assert cli.main(["init"]) == 2
    assert "--yes" in capsys.readouterr().err and files(checkout) == set()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 1)])
@pytest.mark.parametrize(("owner", "name"), [(os, "link"), (Path, "write_text")])
def test_interrupted_writing_leaves_nothing(site, monkeypatch, owner, name, error, code):
    real, calls = getattr(owner, name), []

    def second_fails(*arguments, **more):
        calls.append(arguments)
        if len(calls) >= 2:
            raise error
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, second_fails)
        if name == "link" and code == 1:
            patch.setattr(write, "open", second_fails, raising=False)
        assert init() == code
    assert len(calls) >= 2 and files(site) == set()


def test_file_system_without_hard_links_gets_the_same_files(site, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(write.os, "link", link)
    assert init() == 0
    assert files(site) == {"my.yaml", "config/clusters/sandbox.yaml"}


def test_file_that_appears_meanwhile_is_kept(site, monkeypatch):
    real = write._validate

    def appear(*arguments, **more):
        real(*arguments, **more)
        Path("my.yaml").write_text("another's")

    monkeypatch.setattr(write, "_validate", appear)
    assert init() == 2
    assert files(site) == {"my.yaml"} and Path("my.yaml").read_text() == "another's"


def test_files_that_check_refuses_are_a_defect_and_not_written(checkout, monkeypatch, capsys):
    monkeypatch.setattr(write, "render", lambda *_, **__: "run: x\nmodle: {}\n")
    assert init() == 1
    err = capsys.readouterr().err
    assert "modle" in err and "defect" in err and files(checkout) == set()


@pytest.mark.parametrize("text", ["plain", "/a/b c", "no", "123", "a: b", "a #b", "'x'", "ü", "{x}", " a", "1e3"])
def test_scalar_is_read_back_as_the_same_text(text):
    assert yaml.safe_load(f"key: {write.scalar(text)}") == {"key": text}


def test_model_with_an_odd_folder_name_is_quoted(checkout):
    folder = checkout / "no #1, {x}"
    builtin.make("tiny-dense", folder)
    assert init("--model", str(folder)) == 0
    assert load(Path("my.yaml")).models["no-1-x"].source == str(folder)


def test_models_of_the_hub_cache_are_named_in_a_comment(checkout, tmp_path, monkeypatch):
    from servemark.init import models

    snapshot = hub_cache.make(tmp_path / "hub")
    monkeypatch.undo()
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(models, "in_hub_cache", lambda real=models.in_hub_cache: real(tmp_path / "hub"))
    only(tmp_path / "none", monkeypatch, {})
    assert init() == 0
    assert f"#   {snapshot}\n" in Path("my.yaml").read_text()


@pytest.mark.parametrize(("revision", "stored"), [("", True), (f"@{hub_cache.COMMIT}", True), ("@v1", False)])
def test_comment_of_a_hub_model_states_the_cached_commit(checkout, tmp_path, monkeypatch, revision, stored):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_cache.make(tmp_path / "hub")
    assert init("--model", f"hf:{hub_cache.REPOSITORY}{revision}") == 0
    (before,) = re.findall(r"models:\n((?:  # .*\n)+)", Path("my.yaml").read_text())
    assert (hub_cache.COMMIT in before) == stored and ("download" in before) != stored


class Dialogue:
    """The command in a pseudo-terminal."""

    def __init__(self, folder: Path, path: str, *arguments: str):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            library = os.pathsep.join([str(ROOT / "workflow/lib"), str(ROOT / "plugins/snakemake-executor-plugin-slurm-guarded/src")])
            env = {"PATH": path, "HOME": str(folder), "PYTHONPATH": library, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, "-m", "servemark.cli", "init", *arguments], env)
        self.text = ""

    def answer(self, question: str, answer: str) -> None:
        self._read_until(lambda: question in self.text and self.text.endswith("> ") and self._waits())
        self.text = ""
        os.write(self.terminal, answer.encode())

    def _waits(self) -> bool:
        """Return whether the command waits for input. Python loses a Ctrl-C between the prompt and the system call that reads."""
        return Path(f"/proc/{self.child}/stat").read_text().rpartition(") ")[2].startswith("S")

    def end(self) -> int:
        code: list[int] = []

        def ended() -> bool:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            code.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(pid)

        self._read_until(ended)
        os.close(self.terminal)
        return code[0]

    def _read_until(self, condition) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.text
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.terminal, 65536).decode()
                except OSError:  # the command has closed its end
                    time.sleep(0.05)


def test_questions_at_a_terminal_decide_model_partition_and_account(site):
    builtin.make("tiny-moe", site / "models" / "mine")
    dialogue = Dialogue(site, os.environ["PATH"])
    dialogue.answer("Which model?", "/nowhere\n")
    dialogue.answer("/nowhere", "9\n")
    dialogue.answer("1", "models/mine\n")
    dialogue.answer("Which partition?", "4\n")
    dialogue.answer("Which account?", "2\n")
    assert dialogue.end() == 0
    cluster = load(Path("my.yaml")).cluster
    assert cluster and (cluster.partition, cluster.gpus_per_node) == ("client", 0) and cluster.account != "research"
    assert written()["models"] == {"mine": {"source": str(site / "models" / "mine")}}


@pytest.mark.parametrize(("keys", "code"), [("\x03", 130), ("\x04", 2)])
def test_interrupt_or_end_of_input_at_a_question_leaves_nothing(site, keys, code):
    dialogue = Dialogue(site, os.environ["PATH"], "--output", "x.yaml")
    dialogue.answer("Which model?", keys)
    assert dialogue.end() == code
    assert files(site) == set()


def test_free_space_is_printed_for_each_folder(checkout, capsys):
    assert init() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Folders")]
    assert str(checkout) in line and storage.size(2**30)[-3:] in line
