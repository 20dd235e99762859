"""Datasets of prompts: read, checked row by row, and staged as one JSON Lines file.

Every function reads and writes row by row, so memory does not depend on the number of rows.
"""
