"""Stand-in of ray: it is there and says its version, no more."""

__version__ = "0.0.0+standin"
