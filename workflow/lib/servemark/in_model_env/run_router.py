"""Run by the model environment's interpreter: vllm-router with its key check turned on.

usage: python run_router.py ARGUMENTS OF vllm-router

Its Rust core can ask a validation address about every client's key, on every route; its Python command line has no option
for that. The replicas are the judges: a key is right when /v1/models of a replica answers 200 to it.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

# Guarded by vLLM itself and by our middleware; /health would call every key right.
JUDGE = "/v1/models"
TIMEOUT_S = 10.0


def asks_for_key(url: str) -> bool:
    """Return whether ``url`` answers 401 to a request without a key; anything else is said on stderr."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            said = f"{answer.status} without a key"
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return True
        said = f"{error.code} without a key"
    except OSError as error:
        said = f"nothing ({error})"
    print(f"{url} answers {said}, 401 was expected: the router is not started", file=sys.stderr)
    return False


def main(argv: list[str]) -> int:
    """Start the router when every replica asks for the key; return the exit code."""
    from vllm_router.launch_router import launch_router, parse_router_args

    arguments = parse_router_args(argv)
    judges = [url + JUDGE for url in arguments.worker_urls]
    # A replica that is not there yet, or that is open, would make the router refuse the right key or take any.
    if not judges or not all(asks_for_key(url) for url in judges):
        return 1
    # The fields of this object become the arguments of the Rust class; one that it does not know ends in a TypeError.
    arguments.api_key_validation_urls = judges
    launch_router(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
