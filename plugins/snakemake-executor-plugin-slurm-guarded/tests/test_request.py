"""A request becomes sbatch flags and resources of a rule, and is read back."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_slurm_guarded.request import Request


@pytest.mark.parametrize(
    ("request_", "flags"),
    [
        (Request(), ["--nodes=1", "--ntasks-per-node=1"]),
        (Request(cpus=4, memory_mb=512), ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=512M"]),
        (
            Request("x", "acc", "batch", "normal", "a100&nvme", 2, "gpu:4", 90, True, "--nice=5 -X 'two words'", cpus=4, memory_mb=5),
            ["--nodes=2", "--ntasks-per-node=1", "--account=acc", "--partition=batch", "--qos=normal", "--constraint=a100&nvme",
             "--gres=gpu:4", "--time=90", "--exclusive", "--mem=0", "--nice=5", "-X", "two words"],
        ),
        (Request(account="a; rm -rf $HOME"), ["--nodes=1", "--ntasks-per-node=1", "--account=a; rm -rf $HOME"]),
    ],
)  # fmt: skip
def test_flags(request_: Request, flags: list[str]) -> None:
    assert request_.flags() == flags


@pytest.mark.parametrize(
    "request_",
    [
        Request("x", cpus=1),
        Request("x", "acc", "batch", "normal", "gpu", 2, "gpu:4", 90, True, "--nice=5"),
        Request("x", partition="short", nodes=1, minutes=5, cpus=8, memory_mb=4000),
    ],
)
def test_resources_and_back(request_: Request) -> None:
    assert Request.of(request_.resources(), name="x") == request_


def test_open_quote_is_an_error() -> None:
    with pytest.raises(ValueError, match="quotation"):
        Request(extra="--x='").flags()
