"""servemark: serve a large language model with vLLM and Ray, and measure it."""

__version__ = "0.1.0"
