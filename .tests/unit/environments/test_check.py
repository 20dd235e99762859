"""The check of an environment: versions, imports, options, and its fit to the machine."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from builders import report_data
from builders.deployed import HARDWARE
from builders.places import site_packages
from builders.standin_router import put_router
from servemark.environments import check as environment_check
from servemark.errors import EnvironmentRefused
from servemark.records import Gpu
from standin import VERSION

GPUS = HARDWARE.model_copy(
    update={
        "accelerator": "cuda",
        "gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),) * 4,
        "driver": "580.159.04",
        "cuda": "13.0",
    }
)
CUDA_MODULE = """
class nccl:
    @staticmethod
    def version():
        return (2, 29, 7)


def is_available():
    return False
"""
OLD_DRIVER = GPUS.model_copy(update={"driver": "550.90.07", "cuda": "12.4"})


@pytest.fixture
def check(tmp_path, told, watch):
    def run(given, needs_ray=False, needs_router=False, hardware=HARDWARE):
        log = tmp_path / "logs" / "check.log"
        needs = {"needs_ray": needs_ray, "needs_router": needs_router}
        return environment_check.check(given, hardware, **needs, log=log, progress=told, watch=watch)

    return run


def test_working_environment_reports_versions_and_options(check, standin):
    found = check(standin, needs_ray=True)
    assert (found.vllm, found.torch, found.ray, found.vllm_platform) == (VERSION, VERSION, VERSION, "cpu")
    assert (found.name, found.digest, found.nccl, found.warnings) == ("standin", standin.digest, None, ())
    assert (found.torch_cuda, found.tensor_on) == (None, "cpu")
    assert found.python_version.startswith(".".join(map(str, sys.version_info[:2])))
    assert {"max-model-len", "tensor-parallel-size", "enforce-eager"} <= set(found.serve_options)
    assert list(found.serve_options) == sorted(set(found.serve_options))
    assert found.variables == ("VLLM_CPU_KVCACHE_SPACE", "VLLM_HOST_IP", "VLLM_LOGGING_LEVEL")


@pytest.mark.parametrize(
    ("module", "text", "words"),
    [
        ("torch", "raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("torch", "raise SystemExit(3)", r"\(no output\)"),
        (
            "vllm/entrypoints/cli/main.py",
            "raise ValueError('no options here')",
            "ValueError: no options",
        ),
    ],
)
def test_broken_environment_is_refused_with_its_last_line(check, standin_copy, module, text, words):
    file = site_packages(standin_copy) / module
    (file / "__init__.py" if file.is_dir() else file).write_text(text)
    with pytest.raises(EnvironmentRefused, match=words) as refused:
        check(standin_copy)
    assert refused.value.reason == "environment_broken"
    assert standin_copy.prefix in refused.value.what and Path(refused.value.look).exists()


@pytest.mark.parametrize("end", ["", "\nraise ImportError('broken')\n"])
def test_temporary_files_of_an_import_are_removed(check, standin_copy, tmp_path, monkeypatch, end):
    torch = site_packages(standin_copy) / "torch" / "__init__.py"
    torch.write_text(f"{torch.read_text()}\nimport tempfile\ntempfile.mkdtemp(prefix='torchinductor_'){end}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    # A folder of a killed check.
    (tmp_path / "logs" / "check.tmp" / "old").mkdir(parents=True)
    with pytest.raises(EnvironmentRefused) if end else contextlib.nullcontext():
        check(standin_copy)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "logs" / "check.tmp").exists()


def test_missing_ray_is_refused_only_if_a_deployment_needs_it(check, standin_copy):
    (site_packages(standin_copy) / "ray" / "__init__.py").write_text("raise ImportError('no ray here')")
    found = check(standin_copy)
    assert found.ray is None and "no ray here" in found.warnings[0]
    with pytest.raises(EnvironmentRefused) as refused:
        check(standin_copy, needs_ray=True)
    assert refused.value.reason == "ray_missing"


def test_missing_router_is_refused_only_if_a_deployment_needs_it(check, standin_copy):
    assert check(standin_copy).router is False
    with pytest.raises(EnvironmentRefused) as refused:
        check(standin_copy, needs_router=True)
    assert refused.value.reason == "router_missing"
    put_router(standin_copy)
    assert check(standin_copy, needs_router=True).router is True


def add(environment, name: str, version: str) -> None:
    metadata = site_packages(environment) / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_cuda_build_without_flashinfer_kernels_has_a_warning(check, standin_copy):
    (site_packages(standin_copy) / "torch" / "version.py").write_text("cuda = '13.0'\n")
    (site_packages(standin_copy) / "torch" / "cuda.py").write_text(CUDA_MODULE)
    assert not any("FlashInfer" in text for text in check(standin_copy).warnings)
    add(standin_copy, "flashinfer-python", "0.7.0")
    assert any("FlashInfer" in text for text in check(standin_copy).warnings)
    add(standin_copy, "flashinfer-cubin", "0.7.0")
    assert not any("FlashInfer" in text for text in check(standin_copy).warnings)


def cuda_build(environment) -> None:
    (site_packages(environment) / "torch" / "version.py").write_text("cuda = '13.0'\n")
    (site_packages(environment) / "torch" / "cuda.py").write_text(CUDA_MODULE)
    add(environment, "flashinfer-python", "0.7.0.post1")


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_kernel_tools_are_found_in_the_order_of_flashinfer(check, standin_copy, tmp_path, monkeypatch):
    cuda_build(standin_copy)
    toolkit = tmp_path / "cuda"
    nvcc = program(toolkit / "bin" / "nvcc", "echo 'Cuda compilation tools, release 13.5, V13.5.37'")
    (toolkit / "include").mkdir()
    (toolkit / "include" / "cuda.h").write_text("/* x */\n#define CUDA_VERSION 13000\n")
    compiler = program(tmp_path / "cxx")
    ninja = program(Path(standin_copy.prefix) / "bin" / "ninja")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setenv("CXX", str(compiler))
    found = check(standin_copy).kernels
    assert (found.nvcc, found.nvcc_cuda, found.headers_cuda) == (str(nvcc), "13.5", "13.0")
    assert (found.ninja, found.compiler) == (str(ninja), str(compiler))
    assert (found.flashinfer, found.precompiled) == ("0.7.0.post1", False)
    add(standin_copy, "flashinfer-jit-cache", "0.7.0.post1+cu130")
    assert check(standin_copy).kernels.precompiled is True


def test_node_without_toolkit_has_no_kernel_tools(check, standin_copy, tmp_path, monkeypatch):
    cuda_build(standin_copy)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("CXX", str(tmp_path / "none" / "c++"))
    found = check(standin_copy).kernels
    assert (found.nvcc, found.nvcc_cuda, found.headers_cuda, found.compiler) == (None, None, None, None)


def test_cpu_build_has_no_kernel_tools(check, standin):
    assert check(standin).kernels is None


def test_torch_with_wrong_sums_is_refused(check, standin_copy):
    torch = site_packages(standin_copy) / "torch" / "__init__.py"
    torch.write_text(torch.read_text().replace("[1.0] * count", "[0.5] * count"))
    with pytest.raises(EnvironmentRefused) as refused:
        check(standin_copy)
    assert refused.value.reason == "environment_broken" and "torch" in refused.value.what


CUDA = {"vllm": "0.32.0", "torch": "2.13.0+cu130", "torch_cuda": "13.0", "vllm_platform": "cuda"}


@pytest.mark.parametrize(
    ("hardware", "facts", "words"),
    [
        (HARDWARE, {"tensor_on": "cpu"}, None),
        (GPUS, {**CUDA, "tensor_on": "cuda"}, None),
        (
            HARDWARE,
            {**CUDA, "vllm_platform": "none", "tensor_on": "cpu"},
            "CUDA 13.0",
        ),
        (GPUS, {"tensor_on": "cpu"}, "4 x NVIDIA H200"),
    ],
    ids=["CPU on CPU", "CUDA on GPUs", "CUDA without GPU", "CPU with unused GPUs"],
)
def test_unchecked_cuda_build_and_unused_gpus_have_a_warning(hardware, facts, words):
    found = environment_check.judge(report_data.check(**({"vllm_platform": "cpu"} | facts)), hardware)
    assert len(found) == (words is not None)
    assert all(words in text and "node01" in text for text in found)


@pytest.mark.parametrize("facts", [{"tensor_on": "cpu"}, {**CUDA, "vllm_platform": "none", "tensor_on": "cpu"}])
def test_hidden_gpus_have_a_warning(facts):
    hidden = HARDWARE.model_copy(update={"hidden_gpus": 4, "cuda_visible_devices": ""})
    found = environment_check.judge(report_data.check(**({"vllm_platform": "cpu"} | facts)), hidden)
    assert "CUDA_VISIBLE_DEVICES is ''" in found[0] and "4 of 4 GPU(s)" in found[0]
    assert all("CUDA 13.0" in text for text in found[1:]) and len(found) == 1 + ("torch_cuda" in facts)


@pytest.mark.parametrize(
    ("hardware", "facts", "what", "do"),
    [
        (
            GPUS,
            {**CUDA, "torch": "2.13.0", "torch_cuda": None, "tensor_on": "cpu"},
            "4 x NVIDIA H200, and torch 2.13.0 ",
            "Install",
        ),
        (
            OLD_DRIVER,
            {**CUDA, "tensor_on": "cpu"},
            "CUDA 13.0, and the driver 550.90.07 ",
            "driver",
        ),
        (
            GPUS,
            {**CUDA, "tensor_on": "cpu"},
            "torch 2.13.0+cu130 ",
            "CUDA_VISIBLE_DEVICES",
        ),
    ],
    ids=["a torch without CUDA", "a driver that is too old", "GPUs that torch does not see"],
)
def test_gpus_that_torch_does_not_reach_are_refused(hardware, facts, what, do):
    with pytest.raises(EnvironmentRefused) as refused:
        environment_check.judge(report_data.check(**facts), hardware)
    assert what in refused.value.what and do in refused.value.do
    assert refused.value.reason == "gpu_not_reached"


def test_warnings_are_part_of_the_record(check, standin_copy):
    (site_packages(standin_copy) / "torch" / "version.py").write_text("cuda = '13.0'\n")
    (site_packages(standin_copy) / "torch" / "cuda.py").write_text(CUDA_MODULE)
    found = check(standin_copy)
    assert (found.torch_cuda, found.nccl, found.tensor_on) == ("13.0", "2.29.7", "cpu")
    assert found.warnings and "CUDA 13.0" in found.warnings[-1]
    assert "4 x NVIDIA H200" in check(standin_copy, hardware=GPUS).warnings[-1]


def test_options_are_listed_if_vllm_finds_no_device(check, standin_copy):
    vllm = site_packages(standin_copy) / "vllm"
    platforms, main = vllm / "platforms.py", vllm / "entrypoints" / "cli" / "main.py"
    platforms.write_text(platforms.read_text().replace('"cpu"', '""'))
    refuses = "from vllm.platforms import current_platform\nassert current_platform.device_type, 'Failed to infer device type'\n"
    main.write_text(refuses + main.read_text())
    found = check(standin_copy)
    assert found.vllm_platform == "none" and "tensor-parallel-size" in found.serve_options


def test_gpu_that_only_torch_reaches_is_refused():
    found = report_data.check(vllm_platform="cuda", torch_cuda="13.0", tensor_on="cuda")
    with pytest.raises(EnvironmentRefused) as refused:
        environment_check.judge(found, report_data.hardware(accelerator="cpu", gpus=()))
    assert refused.value.reason == "gpu_not_reached" and "NVIDIA_DRIVER_CAPABILITIES" in str(refused.value)


def test_interpreter_that_cannot_be_started_is_refused(check, standin, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    with pytest.raises(EnvironmentRefused) as refused:
        check(standin.model_copy(update={"python": str(python)}))
    assert refused.value.reason == "environment_broken" and str(python) in Path(refused.value.look).read_text()
