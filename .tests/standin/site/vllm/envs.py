"""The stand-in's variables: those of the real one that tests speak of, and one that is not vLLM's own."""

import os

environment_variables = {
    name: lambda name=name: os.environ.get(name) for name in ("VLLM_LOGGING_LEVEL", "VLLM_CPU_KVCACHE_SPACE", "VLLM_HOST_IP", "LOCAL_RANK")
}
