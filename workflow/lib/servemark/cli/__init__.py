"""The `servemark` command."""
