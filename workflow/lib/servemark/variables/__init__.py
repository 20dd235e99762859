"""Which environment variables reach a server, decide numbers, or name places."""
