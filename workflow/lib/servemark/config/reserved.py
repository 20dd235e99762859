"""Names that a configuration or a cluster file may not use: options that servemark sets, and other tools' names for keys."""

_CODE = "set `trust_remote_code: true` of the model, so that records state it"
_ADDRESS = "servemark chooses the server's address; fix the port with `port` of the deployment"
_SECRET = "a configuration must not hold secrets; servemark creates an API key and passes it by environment"  # noqa: S105


def _by_option(reasons: dict[str, str]) -> dict[str, str]:
    return {option: why for why, options in reasons.items() for option in options.split()}


# Reason -> names of options without leading dashes; `*` at the end matches all options that begin so.
SERVE_OPTIONS = _by_option(
    {
        _ADDRESS: "host port uds root-path",
        "servers use HTTP without TLS, so that TLS does not change the results; to reach one from another network, use the ssh tunnel of "
        "how-to-use.txt": "ssl-*",
        _SECRET: "api-key hf-token",
        "it would run your code in the request path that is measured": "middleware",
        "the deployment's `model` names the model": "model",
        "set `served_name` of the model": "served-model-name",
        _CODE: "trust-remote-code",
        "set `topology.tensor_parallel`": "tensor-parallel-size",
        "set `topology.pipeline_parallel`": "pipeline-parallel-size",
        "set `topology.data_parallel`": "data-parallel-*",
        "set `topology.executor`": "distributed-executor-backend",
        "set `topology.nodes`": "nnodes",
        "servemark starts the processes of a deployment itself; describe them in `topology`": "node-rank master-addr master-port headless",
        "name the file with `options_file` of the deployment, so that servemark checks and records its content": "config",
    }
)
CLIENT_OPTIONS = _by_option(
    {
        _ADDRESS: "base-url host port",
        "set `api`": "backend endpoint",
        _SECRET: "header api-key hf-token",
        "the deployment's `model` names the model": "model",
        "set `served_name` of the model": "served-model-name",
        "the tokenizer comes with the model": "tokenizer",
        _CODE: "trust-remote-code",
        "set `dataset`": "dataset-name dataset-path hf-* oversample",
        "set `dataset.prefix`": "prefix-repetition-*",
        "set `arrivals` of the dataset": "timed-trace-*",
        "set `input_tokens`": "input-len random-input-len",
        "set `output_tokens`": "output-len random-output-len custom-output-len sharegpt-output-len",
        "set `requests`": "num-prompts",
        "set `concurrency`": "max-concurrency",
        "set `request_rate`": "request-rate",
        "set `seed`": "seed",
        "set `warmups`": "num-warmups",
        "every output has `output_tokens` tokens, or the measurement is rejected": "ignore-eos",
        "servemark uses greedy sampling, so that repetitions are comparable": "temperature",
        "servemark decides what the client records and where": "save-result save-detailed append-result result-dir result-filename "
        "metadata percentile-metrics metric-percentiles",
    }
)
SBATCH_OPTIONS = _by_option(
    {
        "it follows from `topology` and the cluster file's gpus_per_node, cpus_per_node and memory": "nodes gres gpus* mem mem-per-cpu "
        "mem-per-gpu cpus-per-task cpus-per-gpu tres-per*",
        "servemark starts one task on each node itself": "ntasks* tasks-per-node",
        "it follows from the missing load points; the cluster file's max_minutes caps it": "time time-min",
        "servemark finds its jobs and their logs by these names": "job-name comment output error open-mode",
        "it has its own key in the cluster file": "partition account qos constraint reservation exclusive",
        "servemark sets the job's command": "wrap input",
        "jobs run in the checkout's folder": "chdir",
        "servemark sets the environment; add variables under `variables`": "export export-file",
        "one deployment is one job": "array",
        "snakemake decides the order of jobs": "dependency hold begin",
        "snakemake waits for its jobs itself": "wait",
        "snakemake reads what sbatch prints": "parsable quiet",
        "sbatch would start nothing": "test-only help usage version",
        "squeue and sacct query their default cluster only": "clusters",
        "snakemake would not wait for a job that restarts by itself": "requeue kill-on-invalid-dep",
    }
)
"""Options that ``extra`` of a cluster file may not hold."""

WHOLE_LOAD_OPTIONS = frozenset(
    ["burstiness", "probe-request-rate", "ramp-up-end-rps", "ramp-up-start-rps", "ramp-up-strategy", "random-prefix-len", "self-timed"]
)
"""Options of the client that describe the whole load. Several client processes with the same option would send another load."""

_SPELLED_OUT = ("random-range-ratio", *sorted(WHOLE_LOAD_OPTIONS))

_OTHER_NAMES = {
    ("tensor_parallel",): "tp tp-size tensor-parallel tensor-parallel-size",
    ("pipeline_parallel",): "pp pp-size pipeline-parallel pipeline-parallel-size",
    ("data_parallel",): "dp dp-size data-parallel data-parallel-size",
    ("tensor_parallel", "gpus_per_node"): "gpu gpus n-gpus ngpus num-gpus devices",
    ("nodes",): "nnodes n-nodes num-nodes",
    ("executor",): "backend distributed-executor-backend",
    ("options.max-model-len",): "max-len max-length max-seq-len context-length",
    ("options",): "args engine-args vllm-args serve-options",
    ("variables",): "env envs env-vars",
    ("source", "file"): "path",
    ("source",): "model-path weights",
    ("file",): "jsonl file-path",
    ("lock",): "vllm vllm-version",
    ("prefix",): "conda conda-env venv virtualenv python",
    ("container",): "docker sif",
    ("from", "min"): "min minimum low lowest",
    ("to", "max"): "max maximum high highest",
    ("requests",): "num-prompts prompts",
    ("concurrency",): "max-concurrency concurrent-requests users",
    ("request_rate",): "qps rps rate request-rates",
    ("input_tokens",): "input-len prompt-tokens isl",
    ("output_tokens",): "output-len max-tokens osl",
    ("repetitions",): "reps repeat repeats runs",
    ("partition",): "queue",
    ("max_minutes",): "time walltime time-limit",
}
"""Keys of the configuration and words that they take, the likeliest first -> what other tools call them."""
_KEYS = {name: keys for keys, names in _OTHER_NAMES.items() for name in names.split()}


def meant(name: str) -> tuple[str, ...]:
    """Return the keys that another tool's ``name`` may stand for, the likeliest first; ``(name,)`` for an unknown name."""
    return _KEYS.get(name.replace("_", "-").lower(), (name,))


def refusal(option: str, table: dict[str, str]) -> str | None:
    """Return the reason why ``table`` refuses ``option`` (kebab-case, with or without ``no-``), or None.

    vLLM and sbatch accept an unambiguous beginning of an option (FlexibleArgumentParser keeps argparse's ``allow_abbrev``, 0.32.0):
    ``tensor-parallel`` is ``tensor-parallel-size``.
    """
    whole = option.split(".", 1)[0]
    name = whole.removeprefix("no-")
    if name in table:
        return table[name]
    # sbatch's `no-` is a part of the name: `no-kill` does not abbreviate `kill-on-invalid-dep`.
    name = whole if table is SBATCH_OPTIONS else name
    names = [name, *(one.replace("_", "-") for one in meant(name) if "." not in one)] if table is SERVE_OPTIONS else [name]
    for key, why in table.items():
        beginning = key.rstrip("*")
        if any(beginning.startswith(one) or (key != beginning and one.startswith(beginning)) for one in names):
            return why
    return None


def abbreviated(option: str) -> str | None:
    """Return the option that ``option`` (kebab-case) abbreviates, if it decides what the client sends; else None."""
    return None if option in _SPELLED_OUT else next((name for name in _SPELLED_OUT if name.startswith(option)), None)


def kebab(option: str) -> str:
    """Return ``max_num_seqs`` as ``max-num-seqs``; the part after a dot, a key of the option's value, stays."""
    head, dot, tail = option.partition(".")
    return head.replace("_", "-") + dot + tail
