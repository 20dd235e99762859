"""Stand-in of vllm for fault tests: `vllm serve` and `vllm bench serve` that speak like the real ones."""

__version__ = "0.0.0+standin"
