"""Environment variables that control the stand-in.

STANDIN_START_S       seconds from start to ready, default 1
STANDIN_TOKEN_S       seconds per generated token, default 0.002
STANDIN_CAPACITY      requests above which a token takes longer, in proportion to the running requests; default none
STANDIN_FAULT         fault of the server: exit_at_start, bad_option, never_ready, hang, fail_requests:K, cut_streams:K,
                      zero_tokens, short_tokens, die_after:N, ignore_term, slow_start:S, wrong_name
STANDIN_FAULT_FILE    a file whose text, if any, replaces STANDIN_FAULT; "none" is no fault. Read at each
                      request and token, so a fault can be switched while the server runs
STANDIN_CLIENT_FAULT  fault of the client: truncated_json, no_file, exit_1, nan, hang
STANDIN_CLIENT_FAULT_FILE  a file whose text, if any, replaces STANDIN_CLIENT_FAULT
"""

import contextlib
import os
from pathlib import Path


def number(name, default):
    return float(os.environ.get(name, default))


def fault():
    """Return the server's current fault and its number: ``("cut_streams", 3.0)``, ``("hang", 0.0)`` or ``("", 0.0)``."""
    name, _, value = asked("STANDIN_FAULT").partition(":")
    return ("" if name == "none" else name), float(value or 0)


def client_fault():
    return asked("STANDIN_CLIENT_FAULT")


def asked(variable):
    text = os.environ.get(variable, "")
    if file := os.environ.get(f"{variable}_FILE"):
        with contextlib.suppress(OSError):
            text = Path(file).read_text().strip() or text
    return text.strip()
