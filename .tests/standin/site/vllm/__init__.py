"""Stand-in of vllm for fault tests: `vllm serve` and `vllm bench serve` with vLLM's interfaces."""

__version__ = "0.0.0+standin"
