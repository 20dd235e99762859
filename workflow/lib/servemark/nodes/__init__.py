"""The allocation, the survey of its nodes, and who gets which port."""
