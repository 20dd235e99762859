"""No CUDA in the stand-in."""

cuda = None
