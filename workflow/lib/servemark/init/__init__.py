"""``servemark init``: find out what this machine and its Slurm offer, and write a first configuration from that."""
