"""Options that a configuration or a cluster file may not set, each with the reason."""

from __future__ import annotations

from servemark.config import aliases

_ADDRESS = "servemark chooses the server's address; fix the port with `port` of the deployment"
_SECRET = "secrets never live in the configuration; servemark makes its own key and hands it over by environment"  # noqa: S105


def _by_option(reasons: dict[str, str]) -> dict[str, str]:
    return {option: why for why, options in reasons.items() for option in options.split()}


# Reason -> names of options without dashes in front; a name ending in `*` stands for all that start so.
SERVE_OPTIONS = _by_option(
    {
        _ADDRESS: "host port uds root-path ssl-*",
        _SECRET: "api-key hf-token",
        "servemark measures the server without code of yours in its request path": "middleware",
        "the deployment's `model` names the model": "model",
        "the deployment's `model` gives the served name": "served-model-name",
        "set it where it is recorded: `trust_remote_code: true` of the model": "trust-remote-code",
        "set `topology.tensor_parallel`": "tensor-parallel-size",
        "set `topology.pipeline_parallel`": "pipeline-parallel-size",
        "set `topology.data_parallel`": "data-parallel-*",
        "set `topology.executor`": "distributed-executor-backend",
        "set `topology.nodes`": "nnodes",
        "servemark starts the processes of a deployment itself; describe them in `topology`": "node-rank master-addr master-port headless",
        "write the options of that file under `options`, so that they are checked and recorded": "config",
    }
)
CLIENT_OPTIONS = _by_option(
    {
        _ADDRESS: "base-url host port endpoint",
        "servemark measures the completions route": "backend",
        _SECRET: "header api-key hf-token",
        "the deployment's `model` names the model": "model",
        "the deployment's `model` gives the served name": "served-model-name",
        "the model brings its tokenizer": "tokenizer",
        "set `dataset`": "dataset-name",
        "set `input_tokens`": "input-len random-input-len",
        "set `output_tokens`": "output-len random-output-len",
        "set `requests`": "num-prompts",
        "set `concurrency`": "max-concurrency",
        "set `request_rate`": "request-rate",
        "set `seed`": "seed",
        "set `warmups`": "num-warmups",
        "every output has `output_tokens` tokens, or the measurement is rejected": "ignore-eos",
        "servemark samples greedily, so that repetitions compare": "temperature",
        "servemark decides where and what the client records": "save-result save-detailed append-result result-dir result-filename "
        "metadata percentile-metrics metric-percentiles",
    }
)
SBATCH_OPTIONS = _by_option(
    {
        "it follows from `topology` and the cluster file's gpus_per_node, cpus_per_node and memory": "nodes gres gpus* mem mem-per-cpu "
        "mem-per-gpu cpus-per-task cpus-per-gpu",
        "servemark starts one task on each node itself": "ntasks* tasks-per-node",
        "it follows from the missing load points; the cluster file's max_minutes caps it": "time time-min",
        "servemark names its jobs and their logs, so that it finds them again": "job-name comment output error open-mode",
        "write it under its own key of the cluster file": "partition account qos constraint reservation exclusive",
        "servemark decides what the job runs": "wrap input",
        "jobs run in the checkout": "chdir",
        "servemark hands over the environment; add variables under `variables`": "export export-file",
        "one deployment is one job": "array",
        "snakemake starts jobs in their order": "dependency hold begin",
        "snakemake waits for its jobs itself": "wait",
        "snakemake reads what sbatch prints": "parsable quiet",
        "nothing would be started": "test-only help usage version",
        "jobs run on the cluster that squeue and sacct use by default": "clusters",
        "nobody would wait for a job that starts again by itself": "requeue kill-on-invalid-dep",
    }
)
"""Options that ``extra`` of a cluster file may not hold."""

WHOLE_LOAD_OPTIONS = frozenset(
    ["burstiness", "probe-request-rate", "ramp-up-end-rps", "ramp-up-start-rps", "ramp-up-strategy", "random-prefix-len", "self-timed"]
)
"""Options of the client that mean another load when each of several processes follows them: a rate of their own, arrivals that do not
add up to the same kind, a prefix that all requests share."""

_SPELLED_OUT = ("random-range-ratio", *sorted(WHOLE_LOAD_OPTIONS))


def refusal(option: str, table: dict[str, str]) -> str | None:
    """Return the reason why ``table`` refuses ``option`` (kebab-case, with or without ``no-``), or None.

    vLLM and sbatch take an unambiguous beginning of an option for the whole (FlexibleArgumentParser leaves argparse's ``allow_abbrev`` on,
    0.32.0): ``tensor-parallel`` is ``tensor-parallel-size``.
    """
    whole = option.split(".", 1)[0]
    name = whole.removeprefix("no-")
    if name in table:
        return table[name]
    # sbatch's `no-` belongs to the name: `no-kill` is no beginning of `kill-on-invalid-dep`.
    name = whole if table is SBATCH_OPTIONS else name
    names = [name, *(one.replace("_", "-") for one in aliases.meant(name) if "." not in one)] if table is SERVE_OPTIONS else [name]
    return next(
        (
            why
            for one in names
            for key, why in table.items()
            if key.rstrip("*").startswith(one) or (key.endswith("*") and one.startswith(key[:-1]))
        ),
        None,
    )


def shortened(option: str) -> str | None:
    """Return the option that ``option`` (kebab-case) is a beginning of, where it decides what the client sends; else None."""
    return None if option in _SPELLED_OUT else next((name for name in _SPELLED_OUT if name.startswith(option)), None)


def kebab(option: str) -> str:
    """``max_num_seqs`` -> ``max-num-seqs``; the part after a dot is a key of the option's value and stays as it is."""
    head, dot, tail = option.partition(".")
    return head.replace("_", "-") + dot + tail
