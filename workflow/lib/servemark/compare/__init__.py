"""Compare two runs, or a run with published numbers: ``servemark compare``."""
