"""vLLM platform plugin: lets the stock Ray executor run on CPU, where a Ray "GPU" stands for one rank.

vLLM refuses Ray on CPU only because its CPU platform names no Ray resource. Active only where servemark starts a Ray
deployment on CPU (SERVEMARK_CPU_RAY=1).
"""

import os


def activate():
    """The platform's qualified name, or None to leave vLLM's own choice alone."""
    return "servemark_cpu_ray.RayCpuPlatform" if os.environ.get("SERVEMARK_CPU_RAY") == "1" else None


def __getattr__(name):
    # Made on demand: the plugin is discovered in every vLLM process, most of which do not want vLLM's platform imported.
    if name != "RayCpuPlatform":
        raise AttributeError(name)
    from vllm.platforms.cpu import CpuPlatform

    class RayCpuPlatform(CpuPlatform):
        ray_device_key = "GPU"
        ray_noset_device_env_vars: list[str] = []

    globals()[name] = RayCpuPlatform
    return RayCpuPlatform
