"""Start vllm-router with its key check, in the model environment.

usage: python run_router.py ARGUMENTS OF vllm-router

The router's Rust core can check the key of every request at a validation address; its Python command line has no such option. The
validation addresses are /v1/models of the replicas: a key is right if a replica responds with 200.
"""

import sys
import urllib.error
import urllib.request

# A route that requires the key. /health does not.
VALIDATION_ROUTE = "/v1/models"
TIMEOUT_S = 10.0


def requires_key(url: str) -> bool:
    """Return whether ``url`` responds with 401 to a request without a key; print any other response to stderr."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            found = f"responds with {response.status}"
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return True
        found = f"responds with {error.code}"
    except OSError as error:
        found = f"does not respond ({error})"
    print(f"{url} {found} to a request without a key. Expected 401, so the router is not started.", file=sys.stderr)
    return False


def main(argv: list[str]) -> int:
    """Start the router if every replica requires the key; return the exit code."""
    from vllm_router.launch_router import launch_router, parse_router_args

    arguments = parse_router_args(argv)
    urls = [url + VALIDATION_ROUTE for url in arguments.worker_urls]
    # With a replica that does not respond the router refuses the right key; with an open one it accepts any key.
    if not urls or not all(requires_key(url) for url in urls):
        return 1
    # The fields of this object become arguments of the Rust class, which raises a TypeError for an unknown one.
    arguments.api_key_validation_urls = urls
    launch_router(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
