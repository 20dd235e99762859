"""Build every command line and process environment. Nothing here starts a process."""
