"""Seal a run into an archive and describe it."""
