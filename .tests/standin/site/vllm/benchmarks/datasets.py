"""Stand-ins for two dataset classes of vLLM's client: a file of prompts, and prompts in groups with a common prefix."""

import json
import random
from dataclasses import dataclass


@dataclass
class SampleRequest:
    """The fields of vLLM's class that the stand-in client uses."""

    prompt: str
    expected_output_len: int
    request_id: str | None = None
    timestamp: float | None = None


class PrefixRepetitionRandomDataset:
    """Like vLLM's class, it gives no request an id, and makes the same number of requests for each prefix."""

    def __init__(self, random_seed=0):
        self.random = random.Random(random_seed)

    def words(self, count):
        return [f"t{self.random.randrange(1024)}" for _ in range(count)]

    def sample(self, num_requests, prefix_len, suffix_len, num_prefixes, output_len, request_id_prefix=""):
        requests = []
        for _ in range(num_prefixes):
            prefix = self.words(prefix_len)
            texts = [" ".join([*prefix, *self.words(suffix_len)]) for _ in range(num_requests // num_prefixes)]
            requests += [SampleRequest(text, output_len) for text in texts]
        self.random.shuffle(requests)
        return requests


class CustomDataset:
    """Rows of a JSONL file; like vLLM's class, it calls ``load_data`` when it is made."""

    def __init__(self, dataset_path=None, **_):
        self.dataset_path, self.data = dataset_path, None
        self.load_data()

    def load_data(self):
        with open(self.dataset_path) as stream:
            self.data = list(map(json.loads, stream))

    def sample(self, tokenizer, num_requests, request_id_prefix="", **_):
        rows = self.data[:num_requests]
        return [SampleRequest(row["prompt"], row["output_tokens"], f"{request_id_prefix}{number}") for number, row in enumerate(rows)]


class TimedTrace:
    """vLLM's class makes its own prompts, so servemark replaces it."""
