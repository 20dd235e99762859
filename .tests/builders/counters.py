"""Counters of servers and routers, read from the text of their ``/metrics``."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def total(text: str, name: str) -> int:
    """Return the sum of a counter over its labels; 0 if it does not exist."""
    families = text_string_to_metric_families(text)
    return round(sum(sample.value for family in families for sample in family.samples if sample.name == name))


def requests_served(text: str) -> int:
    """Return how many requests a vLLM server has finished since its start, aborted ones included."""
    assert "vllm:request_success_total" in text, "these are not vLLM's metrics"
    return total(text, "vllm:request_success_total")


def requests_repeated(text: str) -> int:
    """Return how many requests vllm-router sent again."""
    return total(text, "vllm_router_retries_total")
