"""Check the name of a checkout's folder. Standard library only: ``make setup`` runs it before there is an environment."""

import os
import sys


def fault(folder: bytes) -> str | None:
    """Return why the workflow cannot run below ``folder``, as a phrase; None if it can.

    Spaces, quotes and letters of any language are allowed. Slurm drops backslashes in slurmstepd/fname.c (is_path_escaped).
    """
    if b":" in folder:
        return "has a colon, which separates folders in PYTHONPATH and PATH"
    if b"\\" in folder:
        return "has a backslash, which Slurm drops from the names of logs"
    if any(byte < 32 or byte == 127 for byte in folder):
        return "has a line break or another control character"
    try:
        folder.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8"
    return None


def refusal(folder: bytes) -> tuple[str, str] | None:
    """Return a message for the user and its remedy; None if the folder's name is allowed."""
    if (found := fault(folder)) is None:
        return None
    return f"The name of the folder {os.fsdecode(folder)!a} {found}.", "Rename the folder, or move the checkout."


if __name__ == "__main__":
    if message := refusal(os.getcwdb()):
        sys.exit(print("servemark: {}\n  what to do: {}".format(*message), file=sys.stderr) or 2)
