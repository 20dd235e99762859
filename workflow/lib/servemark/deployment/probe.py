"""Requests that show whether a server is ready, and that it requires the API key."""

import httpx

from servemark.errors import StageFailed


class ServerProbe:
    """One server. It is ready when /health returns 200, /v1/models lists the served name, and a completion has an output token.

    Only the completion counts: with pipeline parallelism vLLM returned 200 on /health while the first request killed the engine.
    """

    def __init__(self, url: str, served_name: str, key: str, health: str = "/health"):
        self._client = httpx.Client(base_url=url, timeout=10.0, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        self._name, self._health = served_name, health
        self._healthy = False

    def __call__(self) -> str:
        """Send one request; return ``ready``, ``healthy`` or words for the state.

        Raises:
            StageFailed: another program has the port.
        """
        try:
            if not self._healthy:
                health = self._client.get(self._health)
                if health.status_code != 200:
                    return f"{self._health} returns {health.status_code}"
                self._healthy = True
                return "healthy"
            return self._complete()
        except httpx.HTTPError as error:
            return "no connection yet" if isinstance(error, httpx.ConnectError) else f"no response ({type(error).__name__})"

    def _complete(self) -> str:
        models = self._client.get("/v1/models")
        if models.status_code >= 500:
            return f"/v1/models returns {models.status_code}"
        try:
            names = [model["id"] for model in models.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if models.status_code == 401 or self._name not in names:
            found = "refuses this deployment's API key" if models.status_code == 401 else f"lists the models {names}, not {self._name!r}"
            raise StageFailed(
                f"The server at {self._client.base_url} {found}: another program has taken the port.",
                do="Rerun the same command: servemark chooses another port. If you set deployments.NAME.port, choose another one.",
                reason="foreign_server",
            )
        asked = {"model": self._name, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        response = self._client.post("/v1/completions", json=asked, timeout=120)
        if response.status_code != 200:
            return f"a completion returns {response.status_code}: {response.text[:200]}"
        return "ready" if response.json().get("usage", {}).get("completion_tokens", 0) >= 1 else "a completion has no output token"


def require_closed(url: str, timeout_s: float = 30.0) -> None:
    """Raise StageFailed unless a route refuses requests without the API key, or the connection fails."""
    try:
        status = httpx.get(url, timeout=timeout_s, trust_env=False).status_code
    except (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError):
        return  # The server has ended. The wait for it reports this.
    except httpx.HTTPError as error:
        # A slow route may still be an open one.
        raise StageFailed(
            f"{url} gave no response in {timeout_s:.0f} s ({type(error).__name__}). It must return 401 without the API key.",
            do="Rerun the same command. If it happens again, read the server's log.",
            reason="startup_timeout",
        ) from error
    if status != 401:
        raise StageFailed(
            f"{url} returns {status} without the API key; expected 401. servemark does not serve it: anyone could use it.",
            do="Report this defect with the versions of servemark, vLLM and vllm-router.",
            reason="open_door",
        )
