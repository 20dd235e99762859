"""Command lines and process environments. Nothing here starts a process."""
