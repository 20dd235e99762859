"""The life of one deployment, stage by stage: cluster, server, readiness, measuring, end."""
