"""Stand-in of ray: only its version."""

__version__ = "0.0.0+standin"
