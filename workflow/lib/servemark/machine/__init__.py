"""This machine: hardware, visible GPUs, addresses, free ports, the git state of the checkout."""
