"""What looks like a secret: scan, redaction. The names that suggest one are in ``secret_names`` of the Slurm executor."""
