"""The stand-in's variables: vLLM's variables in tests, and one that is not vLLM's."""

import os

environment_variables = {
    name: lambda name=name: os.environ.get(name) for name in ("VLLM_LOGGING_LEVEL", "VLLM_CPU_KVCACHE_SPACE", "VLLM_HOST_IP", "LOCAL_RANK")
}
