"""The software that runs vLLM: lock files, build, check."""
