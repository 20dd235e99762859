"""The shell commands of README.md, the tutorials and the how-to pages, and what runs each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from builders.paths import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs/tutorials").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")])
HARDWARE = re.compile(r"\*Needs [^*]+\.\*$")
"""A line of this form directly above a block: its commands need hardware that CI does not have."""
_SHELLS = ("sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Command:
    """One command of a page; ``hardware``: its block has the mark."""

    text: str
    place: str
    hardware: bool


@dataclass(frozen=True)
class RunBy:
    """What runs a command: a test (``FILE::NAME``) or a script, with the file that contains ``words`` of the command."""

    runner: str
    words: str
    file: str = ""


# The words of the command as the test writes them, in the test's file unless another one is named.
_HARNESS, _SCHEDULED = ".tests/integration/harness.py", ".tests/slurm/workflow/scheduled_checkout.py"
_SHELL = ".tests/slurm/test_sandbox.py::test_shell_prints_three_commands_that_work_when_pasted"
_INIT = ".tests/unit/cli/test_init.py::test_machine_with_gpus_gets_tensor_parallel_over_them"
_SERVED = ".tests/integration/test_serve.py::test_endpoint_is_used_listed_stopped_and_served_again"
_SIGNED = ".tests/unit/archive/test_signature.py::test_commands_sign_and_verify"
_BY_HAND = ".tests/unit/archive/test_signature.py::test_signature_holds_for_ssh_keygen_alone"
_OFFLINE = ".tests/setup/test_offline_setup.py::test_make_setup_needs_only_the_files_in_the_lock"
_BUNDLED = ".tests/unit/environments/test_wheels.py::test_command_writes_wheels_of_both_environments_and_their_manifest"
_PLANNED = ".tests/unit/cli/test_plan.py"
_COMPARED = ".tests/unit/compare/test_command.py"
RUN_BY = {
    "make setup": RunBy(_OFFLINE, '"make", "setup"'),
    "make test": RunBy(".ci/run", "make --jobs=2 --output-sync=target test "),
    "make demo": RunBy(
        ".tests/integration/test_real_vllm.py::test_default_run_completes_after_crash_and_interruption",
        'ROOT / "config" / "config.yaml"',
    ),
    **{
        f".venv/bin/snakemake --profile profiles/local --configfile {name}.yaml": RunBy(
            ".tests/integration/test_happy_path.py::test_first_run_measures_all_and_second_does_nothing",
            '"--profile", "profiles/local"',
            _HARNESS,
        )
        for name in ("my", "qwen", "second")
    },
    ".venv/bin/snakemake --profile slurm --configfile config/examples/two-nodes.yaml --config cluster=ourcluster": RunBy(
        _SHELL, ".venv/bin/snakemake --profile slurm --configfile {two_nodes} --config cluster=", ".tests/slurm/sandbox/__main__.py"
    ),
    ".venv/bin/servemark init --model /data/models/Qwen3-8B": RunBy(_INIT, 'init("--model", '),
    ".venv/bin/servemark init --model /data/models/Qwen3-8B --output qwen.yaml": RunBy(_INIT, 'init("--model", "models/Big", "--output", '),
    ".venv/bin/servemark init --cluster ourcluster --output tiny.yaml": RunBy(
        ".tests/slurm/workflow/test_scheduled_init.py::test_interface_is_known_on_a_compute_node", '"init", "--yes", "--cluster", '
    ),
    **{
        f".venv/bin/snakemake --profile slurm --configfile {name}.yaml": RunBy(
            ".tests/slurm/workflow/test_scheduled_runs.py::test_two_deployments_are_measured_in_parallel_on_two_nodes",
            '"--profile", "slurm", "--configfile", "my.yaml"',
            _SCHEDULED,
        )
        for name in ("my", "qwen", "tiny")
    },
    ".venv/bin/snakemake --profile slurm --configfile my.yaml -- serve": RunBy(
        ".tests/slurm/workflow/test_scheduled_serve.py::test_endpoints_are_listed_and_stopped_from_the_login_node",
        '"serve"',
    ),
    ".venv/bin/snakemake --profile profiles/local --configfile my.yaml -- results/RUN/serving/NAME/held.json": RunBy(
        ".tests/integration/test_serve.py::test_several_endpoints_on_one_machine_are_refused_with_targets", "/held.json"
    ),
    ".venv/bin/servemark check second.yaml": RunBy(
        ".tests/unit/cli/test_check.py::test_room_for_the_environment_is_compared_with_free_space", '"check", "my.yaml"'
    ),
    ".venv/bin/servemark sign results/RUN/archive/RUN.tar.zst": RunBy(_SIGNED, '"sign", str(path)'),
    ".venv/bin/servemark verify RUN.tar.zst --key sender.pub": RunBy(_SIGNED, '"verify", str(path), "--key"'),
    'echo "sender $(cat sender.pub)" > signers': RunBy(_BY_HAND, '"signers").write_text'),
    "ssh-keygen -Y verify -f signers -I sender -n servemark@archive -s RUN.tar.zst.sig < RUN.tar.zst": RunBy(_BY_HAND, '"-Y", "verify"'),
    ".venv/bin/servemark compare results/before results/after": RunBy(
        f"{_COMPARED}::test_improvement_exits_with_0", "run(slower_archive.path, archive.path"
    ),
    ".venv/bin/servemark compare before.tar.zst results/after -o comparison": RunBy(
        f"{_COMPARED}::test_files_are_written_only_with_a_folder", 'run(archive.path, archive.folder, "-o", '
    ),
    ".venv/bin/servemark compare results/before results/after --gate throughput:-5%,p95_ttft:+10%": RunBy(
        f"{_COMPARED}::test_regression_beyond_the_limit_exits_with_1", '"--gate", "throughput:-5%,p95_ttft:+10%"'
    ),
    ".venv/bin/servemark compare config/references/gpt-oss-120b-gh200.yaml results/gpt-oss-120b": RunBy(
        ".tests/unit/compare/test_reference.py::test_only_what_a_reference_states_is_compared", "compare(published(), folder(staged()))"
    ),
    **{
        f".venv/bin/servemark reproduce {words}": RunBy(
            ".tests/integration/test_reproduce.py::test_archive_is_measured_again_and_compared", '"reproduce", archive, "--yes"'
        )
        for words in ("RUN.tar.zst --yes", "results/demo/archive/demo.tar.zst --yes")
    },
    ".venv/bin/servemark reproduce RUN.tar.zst": RunBy(
        ".tests/unit/reproduction/test_reproduce.py::test_files_are_written_and_the_configuration_is_valid", "reproduce(built_run.path)"
    ),
    ".venv/bin/servemark reproduce RUN.tar.zst again --cluster ourcluster": RunBy(
        ".tests/unit/reproduction/test_reproduce.py::test_cluster_of_the_archive_becomes_a_cluster_file",
        'reproduce(run.path, "mine", "--cluster", ',
    ),
    ".venv/bin/servemark plan hf:meta-llama/Llama-3.3-70B-Instruct --gpu a10 --gpus-per-node 4 --context 8192": RunBy(
        f"{_PLANNED}::test_llama_70b_needs_three_nodes_of_four_a10_and_a_division_gives_two",
        '"--gpu", "a10", "--gpus-per-node", "4", "--context", "8192"',
    ),
    ".venv/bin/servemark plan hf:meta-llama/Llama-3.3-70B-Instruct --gpu h200 --gpus-per-node 4 --nodes 8 --context 8192 "
    "--concurrency 64": RunBy(f"{_PLANNED}::test_plan_takes_less_than_five_seconds_of_a_core", '"--concurrency", "64", "--nodes", "32"'),
    ".venv/bin/servemark plan model_type=llama,hidden_size=8192,num_hidden_layers=80,num_attention_heads=64,num_key_value_heads=8,"
    "intermediate_size=28672,vocab_size=128256,torch_dtype=bfloat16 --gpu h200 --gpus-per-node 4 --context 8192": RunBy(
        f"{_PLANNED}::test_shape_without_a_folder_gives_the_same_topologies", "model_type=llama,hidden_size=8192,num_hidden_layers=80"
    ),
    ".venv/bin/servemark remeasure RUN 'DEPLOYMENT/chat-c32-r1'": RunBy(
        ".tests/integration/test_search.py::test_search_finds_the_boundary_and_continues_after_a_kill", '"remeasure", RUN, "a/chat-c16-r1"'
    ),
    ".venv/bin/servemark remeasure demo 'plain/chat-c8-*'": RunBy(
        ".tests/integration/test_again.py::test_chosen_points_are_measured_again_and_others_are_kept", '"remeasure", RUN, "a/chat-c1-*"'
    ),
    ".venv/bin/servemark stop NAME": RunBy(_SERVED, '"stop", "a"'),
    ".venv/bin/servemark bundle cuda13 ../bundle": RunBy(_BUNDLED, '"bundle", "cuda13", "bundle"'),
    ".venv/bin/servemark bundle envs/workflow.lock ../bundle": RunBy(
        ".tests/unit/environments/test_wheels.py::test_lock_file_of_the_workflow_alone_collects_no_model_environment",
        '"bundle", "envs/workflow.lock", "bundle"',
    ),
    ".venv/bin/servemark bundle cuda13 ../bundle --python 3.12 --machine aarch64": RunBy(
        _BUNDLED, '"bundle", "cuda13", "bundle", "--python", "3.12", "--machine", "aarch64"'
    ),
    ".venv/bin/snakemake --profile profiles/local --configfile my.yaml --until stage_weights": RunBy(
        _OFFLINE, '"--until", "stage_weights"'
    ),
    "PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/bundle make setup PYTHON=python3.12": RunBy(
        _OFFLINE, '"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": '
    ),
}

RUN_HERE = (
    ".venv/bin/servemark check my.yaml",
    ".venv/bin/servemark check qwen.yaml",
    ".venv/bin/servemark check tiny.yaml",
    ".venv/bin/servemark check --cluster ourcluster config/examples/two-nodes.yaml",
    "cp config/clusters/example-infiniband.yaml config/clusters/mysite.yaml",
    "cp config/clusters/example-gh200-slingshot.yaml config/clusters/mysite.yaml",
    ".venv/bin/servemark check --cluster mysite my.yaml",
    ".venv/bin/snakemake --profile profiles/local --configfile qwen.yaml -n --quiet rules host",
    ".venv/bin/servemark show results/demo",
    "rm results/demo/report.html",
    ".venv/bin/snakemake --profile profiles/local -n --quiet rules host",
    ".venv/bin/servemark status",
    ".venv/bin/servemark status --json",
    ".venv/bin/servemark ticket tiny-dense",
    ".venv/bin/servemark verify .tests/fixtures/archives/h200x4-tp4.tar.zst",
    ".venv/bin/servemark show .tests/fixtures/archives/h200x4-tp4.tar.zst",
    "tar --zstd -xf RUN.tar.zst",
    "cd RUN && sha256sum -c manifest-sha256.txt",
    "cp config/config.yaml second.yaml",
    "git clone REPOSITORY servemark",
    "cd servemark",
    'export HF_TOKEN="$(cat ~/my-token-file)"',
)
"""What .tests/integration/test_document_commands.py runs as it stands, in this order, in a checkout with a finished run on the stand-in."""


def commands(page: Path, text: str | None = None) -> list[Command]:
    """Return every command of a page: lines of indented blocks and of fences for a shell. Result files and output are none."""
    found: list[Command] = []
    fence, above, block, blank = None, "", False, True
    needed = 4
    for number, line in enumerate((page.read_text() if text is None else text).splitlines(), 1):
        stripped = line.strip()
        if (mark := re.match(r"```(\w*)", stripped)) and fence is None:
            fence = mark[1]
            continue
        if stripped.startswith("```"):
            fence, above = None, ""
            continue
        # Four spaces are a block; in a list eight are, and four belong to its text.
        if stripped and not line.startswith(" "):
            needed = 8 if re.match(r"(\d+\.|[-*]) ", line) else 4
        indented = fence is None and line.startswith(" " * needed) and (block or blank)
        block = bool(indented and stripped)
        if stripped and (block or fence in _SHELLS):
            words = re.sub(r"\s{2,}#.*|\s+# .*", "", stripped).removeprefix("$ ")
            if not words.startswith(("results/", "#")) and not re.match(r"(ok|problem|not checked)\s", stripped):
                found.append(Command(words, f"{page.name}:{number}", bool(HARDWARE.search(above))))
        elif stripped and fence is None:
            above = stripped
        blank = not stripped
    return found
