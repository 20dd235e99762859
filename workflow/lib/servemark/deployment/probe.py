"""What one server answers: whether it is ours, healthy and ready, and whether it keeps its doors closed.

Ready is /health 200, then /v1/models lists the served name, then one completion with a token in it: vLLM answers 200 on
/health while its first request would kill the engine (seen with pipeline parallelism), so only the last one counts.
"""

from __future__ import annotations

import httpx

from servemark.errors import StageFailed


class ServerProbe:
    """Asks one server; every answer that shows another program on our port is an error at once."""

    def __init__(self, url: str, served_name: str, key: str, health: str = "/health"):
        self._client = httpx.Client(base_url=url, timeout=10.0, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        self._name, self._health = served_name, health
        self._healthy = False

    def __call__(self) -> str:
        """Ask once; return the state of the server in a few words."""
        try:
            if not self._healthy:
                health = self._client.get(self._health)
                if health.status_code != 200:
                    return f"{self._health} answers {health.status_code}"
                self._healthy = True
                return "healthy"
            return self._ask()
        except httpx.HTTPError as error:
            return "no connection yet" if isinstance(error, httpx.ConnectError) else f"no answer ({type(error).__name__})"

    def _ask(self) -> str:
        models = self._client.get("/v1/models")
        if models.status_code >= 500:
            return f"/v1/models answers {models.status_code}"
        try:
            names = [model["id"] for model in models.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if models.status_code == 401 or self._name not in names:
            found = "does not know our key" if models.status_code == 401 else f"lists the models {names}, not {self._name!r}"
            raise StageFailed(
                f"The server at {self._client.base_url} {found}: another program has taken the port.",
                do="Run again: another port is chosen (or choose another deployments.NAME.port).",
                reason="foreign_server",
            )
        asked = {"model": self._name, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = self._client.post("/v1/completions", json=asked, timeout=120)
        if answer.status_code != 200:
            return f"a completion answers {answer.status_code}: {answer.text[:200]}"
        return "ready" if answer.json().get("usage", {}).get("completion_tokens", 0) >= 1 else "a completion has no token"


def require_closed(url: str) -> None:
    """Raise StageFailed if a route answers requests without the API key."""
    try:
        status = httpx.get(url, timeout=10.0, trust_env=False).status_code
    except httpx.HTTPError:
        return  # what answers nothing gives nothing away; the measurement will tell
    if status != 401:
        raise StageFailed(
            f"{url} answers {status} without the key; expected 401. Nothing is served that anybody could use.",
            do="This is a defect of servemark, or of a vLLM or router that it does not know; report it with the version.",
            reason="open_door",
        )
