"""ASGI middleware for ``vllm serve --middleware servemark_require_key.RequireKey``: every route requires the API key.

It replaces vLLM's own check, which covers only /v1, /v2, /inference and /cohere, and never OPTIONS: /invocations, /tokenize, /metrics and
more are open to everybody. Its folder is on the server's PYTHONPATH and holds no other module, so that it hides none of the environment.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# As in asgiref.typing, a package that the model environment may not have.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

# Never on a command line.
VARIABLE = "SERVEMARK_API_KEY"
# Set to 1 for replicas behind vllm-router, which requests /health without a key and does not start if that fails. The response is 200 or
# 503 with an empty body; it shows no more than the open port.
OPEN_HEALTH = "SERVEMARK_HEALTH_WITHOUT_KEY"
MESSAGE = "This server requires its API key on every route: Authorization: Bearer KEY."
BODY = json.dumps({"error": {"message": MESSAGE, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}).encode()
START: Scope = {
    "type": "http.response.start",
    "status": 401,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode()), (b"www-authenticate", b"Bearer")],
}


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _requests_health(scope: Scope) -> bool:
    return (scope["type"], scope.get("method"), scope.get("path")) == ("http", "GET", "/health")


class RequireKey:
    """Pass on requests with the key, and the server's own lifespan; respond with 401 to every other request.

    Raises:
        RuntimeError: the variable of the key is not set. vLLM does not start then.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        key = os.environ.get(VARIABLE, "")
        if not key.strip():
            raise RuntimeError(f"{VARIABLE} is not set: without a key this server would be open to everybody")
        self.app = app
        # Digests have one length, so the duration of a comparison does not reveal the key's length.
        self.expected = _digest(key.encode())
        self.open_health = os.environ.get(OPEN_HEALTH) == "1"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "lifespan" or self._has_key(scope) or (self.open_health and _requests_health(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # A close before the accept refuses the handshake: the server responds with 403.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no valid API key"})
        else:
            await send(START)
            await send({"type": "http.response.body", "body": BODY})

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if len(given) != 1:
            # With two headers, another program could read the other one.
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(key.strip()), self.expected)
