"""Options and variables that a configuration or a cluster file may not set, each with the reason."""

from __future__ import annotations

from servemark.config import aliases

_ADDRESS = "servemark chooses the server's address; fix the port with `port` of the deployment"
_SECRET = "secrets never live in the configuration; servemark makes its own key and hands it over by environment"  # noqa: S105
_LAUNCH = "servemark starts the processes of a deployment itself; describe them in `topology`"
_RESULT = "servemark decides where and what the client records"

# Keyed by the option's name without dashes in front; a name ending in `*` stands for all that start so.
SERVE_OPTIONS: dict[str, str] = {
    "host": _ADDRESS,
    "port": _ADDRESS,
    "uds": _ADDRESS,
    "root-path": _ADDRESS,
    "ssl-*": _ADDRESS,
    "api-key": _SECRET,
    "hf-token": _SECRET,
    "middleware": "servemark measures the server without code of yours in its request path",
    "model": "the deployment's `model` names the model",
    "served-model-name": "the deployment's `model` gives the served name",
    "trust-remote-code": "say it where it is recorded: `trust_remote_code: true` of the model",
    "tensor-parallel-size": "say it in `topology.tensor_parallel`",
    "pipeline-parallel-size": "say it in `topology.pipeline_parallel`",
    "data-parallel-*": "say it in `topology.data_parallel`",
    "distributed-executor-backend": "say it in `topology.executor`",
    "nnodes": "say it in `topology.nodes`",
    "node-rank": _LAUNCH,
    "master-addr": _LAUNCH,
    "master-port": _LAUNCH,
    "headless": _LAUNCH,
    "config": "write the options of that file under `options`, so that they are checked and recorded",
}

CLIENT_OPTIONS: dict[str, str] = {
    "base-url": _ADDRESS,
    "host": _ADDRESS,
    "port": _ADDRESS,
    "endpoint": _ADDRESS,
    "backend": "servemark measures the completions route",
    "header": _SECRET,
    "api-key": _SECRET,
    "hf-token": _SECRET,
    "model": "the deployment's `model` names the model",
    "served-model-name": "the deployment's `model` gives the served name",
    "tokenizer": "the model brings its tokenizer",
    "dataset-name": "say it in `dataset`",
    "input-len": "say it in `input_tokens`",
    "output-len": "say it in `output_tokens`",
    "random-input-len": "say it in `input_tokens`",
    "random-output-len": "say it in `output_tokens`",
    "num-prompts": "say it in `requests`",
    "max-concurrency": "say it in `concurrency`",
    "request-rate": "say it in `request_rate`",
    "seed": "say it in `seed`",
    "num-warmups": "say it in `warmups`",
    "ignore-eos": "every answer has `output_tokens` tokens, or the measurement is rejected",
    "temperature": "servemark samples greedily, so that repetitions compare",
    "save-result": _RESULT,
    "save-detailed": _RESULT,
    "append-result": _RESULT,
    "result-dir": _RESULT,
    "result-filename": _RESULT,
    "metadata": _RESULT,
    "percentile-metrics": _RESULT,
    "metric-percentiles": _RESULT,
}

WHOLE_LOAD_OPTIONS = frozenset(
    {
        "burstiness",
        "probe-request-rate",
        "ramp-up-end-rps",
        "ramp-up-start-rps",
        "ramp-up-strategy",
        "random-prefix-len",
        "self-timed",
    }
)
"""Options of the client that mean another load when each of several processes follows them: a rate of their own, arrivals that do not
add up to the same kind, a prefix that all requests share."""

SPELLED_OUT = frozenset({*CLIENT_OPTIONS, *WHOLE_LOAD_OPTIONS, "random-range-ratio"})
"""Options of the client that decide what is sent. vLLM's parser takes an unambiguous beginning for the whole (FlexibleArgumentParser leaves
argparse's ``allow_abbrev`` on, 0.32.0), and we would not know it again."""

_SIZE = "it follows from `topology` and the cluster file's gpus_per_node, cpus_per_node and memory"
_TASKS = "servemark starts one task on each node itself"
_JOB = "servemark names its jobs and their logs, so that it finds them again"
_TIME = "it follows from the load points that are lacking; the cluster file's max_minutes caps it"
_LIFE = "a job that starts anew by itself would be a deployment that nobody waits for"
_OWN_KEY = "write it under its own key of the cluster file"

SBATCH_OPTIONS: dict[str, str] = {
    "nodes": _SIZE,
    "gres": _SIZE,
    "gpus*": _SIZE,
    "mem": _SIZE,
    "mem-per-cpu": _SIZE,
    "mem-per-gpu": _SIZE,
    "cpus-per-task": _SIZE,
    "cpus-per-gpu": _SIZE,
    "ntasks*": _TASKS,
    "tasks-per-node": _TASKS,
    "time": _TIME,
    "time-min": _TIME,
    "job-name": _JOB,
    "comment": _JOB,
    "output": _JOB,
    "error": _JOB,
    "open-mode": _JOB,
    "partition": _OWN_KEY,
    "account": _OWN_KEY,
    "qos": _OWN_KEY,
    "constraint": _OWN_KEY,
    "reservation": _OWN_KEY,
    "exclusive": _OWN_KEY,
    "wrap": "servemark says what the job runs",
    "input": "servemark says what the job runs",
    "chdir": "jobs run in the checkout",
    "export": "servemark hands over the environment; add variables under `variables`",
    "export-file": "servemark hands over the environment; add variables under `variables`",
    "array": "one deployment is one job",
    "dependency": "snakemake starts jobs in their order",
    "hold": "snakemake starts jobs in their order",
    "begin": "snakemake starts jobs in their order",
    "wait": "snakemake waits for its jobs itself",
    "parsable": "snakemake reads what sbatch prints",
    "quiet": "snakemake reads what sbatch prints",
    "test-only": "nothing would be started",
    "help": "nothing would be started",
    "usage": "nothing would be started",
    "version": "nothing would be started",
    "clusters": "jobs run on the cluster that squeue and sacct ask by default",
    "requeue": _LIFE,
    "kill-on-invalid-dep": _LIFE,
}
"""Options that ``extra`` of a cluster file may not hold."""


def refusal(option: str, table: dict[str, str]) -> str | None:
    """Return the reason why ``option`` (kebab-case, with or without ``no-``) is refused by ``table``, or None."""
    name = option.split(".", 1)[0].removeprefix("no-")
    if name in table:
        return table[name]
    return next((why for key, why in table.items() if key.endswith("*") and name.startswith(key[:-1])), None)


def owned(option: str) -> str | None:
    """Return the reason why a beginning of a refused option of ``vllm serve``, or another name of it, is refused, or None.

    vLLM's parser takes an unambiguous beginning for the whole: ``tensor-parallel`` is ``tensor-parallel-size``.
    """
    names = [option, *(one.replace("_", "-") for one in aliases.meant(option) if "." not in one)]
    beginnings = (why for name in names for key, why in SERVE_OPTIONS.items() if key.startswith(name))
    return next(beginnings, None)


def shortened(option: str) -> str | None:
    """Return the option of the client that ``option`` (kebab-case) is a beginning of, where it is none itself, or None."""
    if option in SPELLED_OUT:
        return None
    return next((name for name in sorted(SPELLED_OUT) if name.startswith(option)), None)


def kebab(option: str) -> str:
    """``max_num_seqs`` -> ``max-num-seqs``; what follows a dot is a key of the option's value and stays as it is."""
    head, dot, tail = option.partition(".")
    return head.replace("_", "-") + dot + tail
