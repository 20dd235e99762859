"""Models on disk: staging, manifests, and the architecture by config.json."""
