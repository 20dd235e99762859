"""A stand-in for nvidia-ml-py (checked with 13.615.71), with GPUs that the file named by STANDIN_NVML describes.

The file has {"gpus": [{...}, ...]} and is read again at each call, so a test can change it. A GPU has ``uuid``, ``power_w`` (which also
feeds the energy counter), ``sm_mhz``, ``events``, ``temperature_c``, ``busy``, ``memory_mib``, ``pids``, ``mig`` and ``unsupported``, the
names of functions that fail with NVML_ERROR_NOT_SUPPORTED. Without the variable there is no driver, as on a machine without a GPU.
"""

import json
import os
import time
from types import SimpleNamespace

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
_BEGAN = time.monotonic()


class NVMLError(Exception):
    """The base of all errors; ``value`` is NVML's code."""

    value = 999
    text = "Unknown Error"

    def __str__(self):
        return self.text


class NVMLError_NotSupported(NVMLError):
    value, text = NVML_ERROR_NOT_SUPPORTED, "Not Supported"


class NVMLError_NotFound(NVMLError):
    value, text = NVML_ERROR_NOT_FOUND, "Not Found"


class NVMLError_LibraryNotFound(NVMLError):
    value, text = NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"


def _gpus():
    path = os.environ.get("STANDIN_NVML")
    if path is None:
        raise NVMLError_LibraryNotFound()
    with open(path) as stream:
        return json.load(stream)["gpus"]


def _gpu(handle, function):
    found = _gpus()[handle]
    if function in found.get("unsupported", ()):
        raise NVMLError_NotSupported()
    return found


def nvmlInit():
    _gpus()


def nvmlSystemGetDriverVersion():
    return "0.0.0+standin"


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index):
    if index >= len(_gpus()):
        raise NVMLError_NotFound()
    return index


def nvmlDeviceGetHandleByUUID(uuid):
    for index, gpu in enumerate(_gpus()):
        if gpu["uuid"] == uuid:
            return index
    raise NVMLError_NotFound()


def nvmlDeviceGetUUID(handle):
    return _gpu(handle, "nvmlDeviceGetUUID")["uuid"]


def nvmlDeviceGetName(handle):
    return _gpu(handle, "nvmlDeviceGetName").get("name", "Stand-in GPU")


def nvmlDeviceGetMigMode(handle):
    mode = int(_gpu(handle, "nvmlDeviceGetMigMode").get("mig", False))
    return [mode, mode]


def nvmlDeviceGetPowerUsage(handle):
    """Milliwatts."""
    return round(1000 * _gpu(handle, "nvmlDeviceGetPowerUsage").get("power_w", 100.0))


def nvmlDeviceGetTotalEnergyConsumption(handle):
    """Millijoules since the driver was loaded."""
    power = _gpu(handle, "nvmlDeviceGetTotalEnergyConsumption").get("power_w", 100.0)
    return round(1000 * power * (time.monotonic() - _BEGAN))


def nvmlDeviceGetClockInfo(handle, type):
    assert type == NVML_CLOCK_SM
    return _gpu(handle, "nvmlDeviceGetClockInfo").get("sm_mhz", 1980)


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return _gpu(handle, "nvmlDeviceGetCurrentClocksEventReasons").get("events", 0)


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return _gpu(handle, "nvmlDeviceGetCurrentClocksThrottleReasons").get("events", 0)


def nvmlDeviceGetTemperature(handle, sensor):
    assert sensor == NVML_TEMPERATURE_GPU
    return _gpu(handle, "nvmlDeviceGetTemperature").get("temperature_c", 60)


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_gpu(handle, "nvmlDeviceGetUtilizationRates").get("busy", 90), memory=10)


def nvmlDeviceGetMemoryInfo(handle):
    used = _gpu(handle, "nvmlDeviceGetMemoryInfo").get("memory_mib", 1000) * 2**20
    return SimpleNamespace(total=80 * 2**30, free=80 * 2**30 - used, used=used)


def nvmlDeviceGetComputeRunningProcesses(handle):
    pids = _gpu(handle, "nvmlDeviceGetComputeRunningProcesses").get("pids", ())
    return [SimpleNamespace(pid=pid, usedGpuMemory=2**30, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF) for pid in pids]
