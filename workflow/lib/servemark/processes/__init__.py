"""Identity of a process, children, shared memory."""
