"""The allocation, the survey of its nodes, and their ports."""
