"""The error of a comparison that cannot be made. Exit code 1 of ``servemark compare`` means a regression and nothing else."""

from servemark.errors import ServemarkError


class NotComparable(ServemarkError):
    """A side cannot be read, or the two sides have nothing in common."""

    exit_code = 2
    default_reason = "not_comparable"
