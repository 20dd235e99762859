"""Stand-in for the dataset class of vLLM's client that reads a file of prompts."""

import json


class CustomDataset:
    """Rows of a JSONL file; like vLLM's class, it calls ``load_data`` when it is made."""

    def __init__(self, dataset_path=None, **_):
        self.dataset_path, self.data = dataset_path, None
        self.load_data()

    def load_data(self):
        with open(self.dataset_path) as stream:
            self.data = list(map(json.loads, stream))
