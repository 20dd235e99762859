"""What surrounds the rules: the main process, the run lock, signals, code digests, the final check."""
