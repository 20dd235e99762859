"""ASGI middleware for ``vllm serve --middleware servemark_require_key.RequireKey``: no route without the key.

It is the only check: vLLM's own asks for a key only below /v1, /v2, /inference and /cohere, and never for OPTIONS (/invocations,
/tokenize, /metrics and more answer to anybody), and its variable would make every start compile anew (servemark/doors.py). Its folder
is on the server's PYTHONPATH and holds nothing else, so that it hides no module of the model environment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# As asgiref.typing has them; the model environment need not have that package.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

# Never on a command line.
VARIABLE = "SERVEMARK_API_KEY"
# Set to 1 for replicas behind vllm-router, which asks for /health without a key and starts for no replica that refuses it.
# The answer is 200 or 503 with an empty body: that something is alive, which the open port says already.
OPEN_HEALTH = "SERVEMARK_HEALTH_WITHOUT_KEY"
MESSAGE = "This server asks for its API key on every route: Authorization: Bearer KEY."
BODY = json.dumps({"error": {"message": MESSAGE, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}).encode()
START: Scope = {
    "type": "http.response.start",
    "status": 401,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode()), (b"www-authenticate", b"Bearer")],
}


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _asks_for_health(scope: Scope) -> bool:
    return (scope["type"], scope.get("method"), scope.get("path")) == ("http", "GET", "/health")


class RequireKey:
    """Passes on what carries the key, and the server's own lifespan; answers 401 to every other request.

    Raises:
        RuntimeError: there is no key to ask for; vLLM does not start then.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        key = os.environ.get(VARIABLE, "")
        if not key.strip():
            raise RuntimeError(f"{VARIABLE} is not set: without a key this server would answer to anybody")
        self.app = app
        # Digests have one length: the time of a comparison tells nothing about the key, not even how long it is.
        self.expected = _digest(key.encode())
        self.open_health = os.environ.get(OPEN_HEALTH) == "1"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "lifespan" or self._has_key(scope) or (self.open_health and _asks_for_health(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Closing before accepting is a refusal of the handshake: the server answers 403.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no valid API key"})
        else:
            await send(START)
            await send({"type": "http.response.body", "body": BODY})

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if len(given) != 1:
            # Two of them could be read differently by whoever looks next.
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(key.strip()), self.expected)
