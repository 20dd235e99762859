"""Read ``devices.yaml``: the peaks of data-centre GPUs by their name in nvidia-smi."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from servemark.files.yaml_data import read_yaml
from servemark.records import Gpu, Strict

VENDOR = "NVIDIA "


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    return text


class Device(Strict):
    """Peaks of one GPU."""

    name: Annotated[str, AfterValidator(_pattern)] = Field(description="regular expression for the whole name, without the vendor")
    memory_gib: tuple[float, float] | None = Field(default=None, description="least and most memory; null: any")
    bandwidth: float = Field(gt=0, description="TB/s of its memory")
    bf16: float = Field(gt=0, description="dense TFLOP/s in 16 bits")
    fp8: float | None = Field(default=None, gt=0, description="dense TFLOP/s in 8-bit floats; null: no units")
    fp4: float | None = Field(default=None, gt=0, description="dense TFLOP/s in 4-bit floats; null: no units")
    short: str | None = Field(default=None, description="name for `servemark plan --gpu`; null: none")
    example: str | None = Field(default=None, description="a name in nvidia-smi; null where `short` is")
    mib: int | None = Field(default=None, gt=0, description="its memory in nvidia-smi, MiB; null where `short` is")
    source: str = Field(min_length=10)

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s of the memory."""
        return self.bandwidth * 1e12

    def operations_per_s(self, bits: int) -> float:
        """Return the operations/s of matrix products in ``bits``; those of the next wider units if the GPU has none for them."""
        rates = {4: self.fp4 or self.fp8, 8: self.fp8, 16: self.bf16}
        return (rates[bits] or self.bf16) * 1e12

    def fits(self, gpu: Gpu) -> bool:
        """Return whether this entry describes a GPU."""
        least, most = self.memory_gib or (0.0, float("inf"))
        return re.fullmatch(self.name, gpu.name.removeprefix(VENDOR)) is not None and least <= gpu.memory_mib / 1024 <= most


class Devices(Strict):
    """The whole file."""

    devices: tuple[Device, ...]


@cache
def devices() -> tuple[Device, ...]:
    """Return all entries in their order."""
    return Devices.model_validate(read_yaml(Path(__file__).with_name("devices.yaml"))).devices


def by_short_name() -> dict[str, Gpu]:
    """Return the GPUs that `servemark plan --gpu` knows, by their short names."""
    return {one.short: Gpu(name=one.example, memory_mib=one.mib) for one in devices() if one.short and one.example and one.mib}


def find(gpu: Gpu) -> Device | None:
    """Return the peaks of a GPU; None if ``devices.yaml`` does not have it."""
    return next((device for device in devices() if device.fits(gpu)), None)
