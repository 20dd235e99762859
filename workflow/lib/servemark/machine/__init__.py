"""This machine: hardware, visible GPUs, addresses, free ports, the checkout and its git state."""
