"""No GPU in the stand-in."""


def is_available():
    return False


def device_count():
    return 0
