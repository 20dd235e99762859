"""Models on disk: the builtin ones, manifests, and the shape that config.json states."""
