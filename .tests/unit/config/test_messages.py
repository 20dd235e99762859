"""Every fault of a configuration is told with its file, line, key and a way out."""

from __future__ import annotations

import re

import pytest
import yaml

from builders.config_text import BASE, failure, write
from servemark.config.load import load, validate
from servemark.config.model import Config
from servemark.errors import ConfigError

RANKS = "      tensor_parallel: 1"
OPTION = "      max-model-len: 512"
OPTIONS = "deployments.plain.options"
VARIABLE = "      OMP_NUM_THREADS: 2"
LOAD = "    concurrency: [1, 4]"

# (text of BASE, what takes its place with "#!" on the line the message must name, key, part of the message)
BAD = [
    # unknown keys
    ("run: demo", "run: demo\nsweep: []  #!", "sweep", "did you mean `sweeps`?"),
    ("run: demo", "run: demo\nzzz: 1  #!", "zzz", "allowed: run, models, environments"),
    ("    topology:", "    topolgy:  #!", "deployments.plain.topolgy", "did you mean `topology`?"),
    ("    model: tiny\n", "    model: tiny\n    tensor_parallel: 2  #!\n", "deployments.plain.tensor_parallel",
     "it belongs under deployments.NAME.topology"),
    ("    model: tiny\n", "    model: tiny\n    max-num-seqs: 2  #!\n", "deployments.plain.max-num-seqs",
     "options of `vllm serve` stand under `options`"),
    ("    requests: 32", "    requests: 32\n    burstiness: 2  #!", "workloads.chat.burstiness",
     "stand under `client_options`"),
    ("    requests: 32", "    requests: 32\n    share_ledger: true  #!", "workloads.chat.share_ledger",
     "it belongs at the top level"),
    (RANKS, "      tensor-paralel: 1  #!", "deployments.plain.topology.tensor-paralel",
     "did you mean `tensor_parallel`?"),
    ("    input_tokens: 64", "    input_tokens: 64\n    Concurency: 2  #!", "workloads.chat.Concurency",
     "did you mean `concurrency`?"),
    ("run: demo", "run: demo\ntimeouts:\n  stal: 3  #!", "timeouts.stal", "did you mean `stall`?"),
    ("run: demo", "run: demo\nverdict:\n  min_duration: 3  #!", "verdict.min_duration",
     "did you mean `min_duration_s`?"),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    allow_pickle: true  #!",
     "models.tiny.allow_pickle", "allowed: source, trust_remote_code, load_format"),
    # what other tools call a key
    (RANKS, "      tp: 2  #!", "deployments.plain.topology.tp", "did you mean `tensor_parallel`?"),
    (RANKS, "      tensor-parallel-size: 2  #!", "deployments.plain.topology.tensor-parallel-size",
     "did you mean `tensor_parallel`?"),
    (RANKS, "      pp: 2  #!", "deployments.plain.topology.pp", "did you mean `pipeline_parallel`?"),
    (RANKS, "      dp_size: 2  #!", "deployments.plain.topology.dp_size", "did you mean `data_parallel`?"),
    (RANKS, "      gpus: 2  #!", "deployments.plain.topology.gpus", "did you mean `tensor_parallel`?"),
    ("    environment: cpu", "    environment: cpu\n    tensor_parallel_size: 2  #!", "deployments.plain.tensor_parallel_size",
     "`tensor_parallel` under deployments.NAME.topology"),
    ("    environment: cpu", "    environment: cpu\n    gpus: 2  #!", "deployments.plain.gpus",
     "`tensor_parallel` under deployments.NAME.topology"),
    ("    environment: cpu", "    environment: cpu\n    max_len: 2  #!", "deployments.plain.max_len",
     "`max-model-len` under deployments.NAME.options"),
    ("    environment: cpu", "    environment: cpu\n    env: {A: b}  #!", "deployments.plain.env", "did you mean `variables`?"),
    ("    requests: 32", "    num_prompts: 32  #!", "workloads.chat.num_prompts", "did you mean `requests`?"),
    ("    requests: 32", "    requests: 32\n    qps: 2  #!", "workloads.chat.qps", "did you mean `request_rate`?"),
    (OPTION, "      tensor-parallel: 2  #!", f"{OPTIONS}.tensor-parallel", "`topology.tensor_parallel`"),
    (OPTION, "      --tensor-parallel: 2  #!", f"{OPTIONS}.--tensor-parallel", "`topology.tensor_parallel`"),
    (OPTION, "      --tensor-parallel-size: 2  #!", f"{OPTIONS}.--tensor-parallel-size", "`topology.tensor_parallel`"),
    (OPTION, "      tp: 2  #!", f"{OPTIONS}.tp", "`topology.tensor_parallel`"),
    # names
    ("run: demo", "run: ../up  #!", "run", "found: '../up'"),
    ("run: demo", "run: Demo  #!", "run", "lower-case letters"),
    ("run: demo", "run: no  #!", "run", "must be text: put it in quotes"),
    ("run: demo", "run: 2026-01-02  #!", "run", "put it in quotes"),
    ("run: demo", "run:  #!", "run", "it is empty: fill it in or remove the key"),
    ("run: demo", f"run: {'x' * 81}  #!", "run", "at most 80 characters"),
    ("  plain:", "  pl_ain:  #!", "deployments.pl_ain", "lower-case letters, digits, dots and dashes"),
    ("  chat:", "  7:  #!", "workloads[7]", "put it in quotes"),
    # references
    ("    model: tiny", "    model: tinny  #!", "deployments.plain.model", "did you mean `tiny`?"),
    ("    environment: cpu", "    environment: gpu  #!", "deployments.plain.environment", "allowed: cpu"),
    ("    model: tiny\n", "    model: tiny\n    workloads:\n      - chat\n      - chta  #!\n",
     "deployments.plain.workloads[1]", "did you mean `chat`?"),
    ("    model: tiny\n", "    model: tiny\n    workloads: [chat, chat]  #!\n", "deployments.plain.workloads",
     "two points of one deployment would have the same name"),
    ("    model: tiny\n", "    model: tiny\n    workloads: []  #!\n", "deployments.plain.workloads",
     "must not be empty"),
    # models and environments
    ("builtin:tiny-dense", "builtin:tiny-dens  #!", "models.tiny.source", "did you mean `builtin:tiny-dense`?"),
    ("builtin:tiny-dense", "hf:Qwen3-0.6B  #!", "models.tiny.source", "hf:ORG/NAME@REVISION"),
    ("builtin:tiny-dense", "Qwen/Qwen3-0.6B  #!", "models.tiny.source", "there is no such directory"),
    ("builtin:tiny-dense", "mydir  #!", "models.tiny.source", "written with a slash, ./NAME"),
    ("builtin:tiny-dense", "$SCRATCH/model  #!", "models.tiny.source", "variables are not expanded here"),
    ("    source: builtin:tiny-dense", "    trust_remote_code: 'yes'  #!\n    source: ./x",
     "models.tiny.trust_remote_code", "must be true or false, without quotes"),
    ("  tiny:\n    source: builtin:tiny-dense", "  tiny:  #!\n    trust_remote_code: true", "models.tiny.source",
     "is missing"),
    ("    lock: cpu", "    lock: cuda14  #!", "environments.cpu.lock", "allowed: auto, cpu, cuda12, cuda13"),
    ("    lock: cpu", "    lock: cpuu  #!", "environments.cpu.lock", "did you mean `cpu`?"),
    ("    lock: cpu", "    container: image.sif  #!", "environments.cpu.container", "containers are not there yet"),
    ("  cpu:\n    lock: cpu", "  cpu:  #!\n    lock: cpu\n    prefix: /opt/env", "environments.cpu",
     "takes exactly one of `lock` and `prefix`"),
    ("  cpu:\n    lock: cpu", "  cpu: {}  #!", "environments.cpu", "names no environment"),
    ("    lock: cpu", "    prefix: 5  #!", "environments.cpu.prefix", "must be a path"),
    # topology
    (RANKS, "      nodes: 2  #!", "deployments.plain.topology.nodes",
     "more than one node needs a scheduler: run with --profile profiles/slurm, or write `cluster: NAME`"),
    (RANKS, "      client: own  #!", "deployments.plain.topology.client",
     "a node of its own for the client needs a scheduler"),
    (RANKS, "      client: onw  #!", "deployments.plain.topology.client", "did you mean `own`?"),
    (RANKS, "      replicas: 0  #!", "deployments.plain.topology.replicas", "must be at least 1"),
    (RANKS, "      tensor_parallel: 0  #!", "deployments.plain.topology.tensor_parallel",
     "must be at least 1"),
    (RANKS, "      tensor_parallel: 1.5  #!", "deployments.plain.topology.tensor_parallel",
     "must be a whole number"),
    (RANKS, "      tensor_parallel: true  #!", "deployments.plain.topology.tensor_parallel",
     "found: true"),
    (RANKS, "      pipeline_parallel: 2\n      executor: single  #!",
     "deployments.plain.topology.executor",
     "tensor_parallel x pipeline_parallel x data_parallel is 2; write `mp`"),
    (RANKS, "      data_parallel: 2\n      executor: single  #!",
     "deployments.plain.topology.executor", "allowed: "),
    (RANKS, "      balancing: router  #!", "deployments.plain.topology.balancing",
     "spreads requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel"),
    (RANKS, "      routing: least_requests  #!", "deployments.plain.topology.routing",
     "there is none before one server; leave it out, raise replicas, or give data parallel engines `balancing: router`"),
    (RANKS, "      routing: least_request  #!", "deployments.plain.topology.routing", "did you mean `least_requests`?"),
    (RANKS, "      balancing: ruoter  #!", "deployments.plain.topology.balancing", "did you mean `router`?"),
    (RANKS, "      executor: rya  #!", "deployments.plain.topology.executor", "did you mean `ray`?"),
    ("    topology:\n      tensor_parallel: 1", "    topology: 4  #!", "deployments.plain.topology",
     "must be a mapping of keys"),
    # options and variables
    (OPTION, "      host: 0.0.0.0  #!", "deployments.plain.options.host", "fix the port with `port`"),
    (OPTION, "      tensor_parallel_size: 2  #!", "deployments.plain.options.tensor_parallel_size",
     "say it in `topology.tensor_parallel`"),
    (OPTION, "      ssl-keyfile: k.pem  #!", "deployments.plain.options.ssl-keyfile", "is set by servemark"),
    (OPTION, "      data-parallel-rank: 1  #!", "deployments.plain.options.data-parallel-rank",
     "say it in `topology.data_parallel`"),
    (OPTION, "      no-headless: true  #!", "deployments.plain.options.no-headless", "is set by servemark"),
    (OPTION, "      load-format: dummy  #!", "deployments.plain.options.load-format", "`load_format: dummy` of the model"),
    (OPTION, "      trust-remote-code: true  #!", "deployments.plain.options.trust-remote-code",
     "`trust_remote_code: true` of the model"),
    (OPTION, "      --max-model-len: 512  #!", "deployments.plain.options.--max-model-len",
     "did you mean `max-model-len`?"),
    (OPTION, "      max model len: 512  #!", "deployments.plain.options.max model len",
     "is not the name of an option"),
    ("    options:\n", "    options:  #!\n      max_model_len: 1\n", "deployments.plain.options",
     "written twice, with dashes and with underscores: max-model-len"),
    (OPTION, "      hf-overrides:  #!\n        a: 1", "deployments.plain.options.hf-overrides",
     "write a mapping as JSON"),
    (OPTION, "      max-model-len: .inf  #!", "deployments.plain.options.max-model-len", "finite"),
    (OPTION, "      revision: 2026-01-02  #!", "deployments.plain.options.revision", "put dates in quotes"),
    (OPTION, "      max-cudagraph-capture-size: worklod  #!", f"{OPTIONS}.max-cudagraph-capture-size",
     "is neither a whole number of 1 or more nor `workload`; write one of them"),
    (OPTION, "      max-cudagraph-capture-size: [1, 2]  #!", f"{OPTIONS}.max-cudagraph-capture-size", "is neither a whole number"),
    (OPTION, "      max-cudagraph-capture-size: 2.5  #!", f"{OPTIONS}.max-cudagraph-capture-size", "is neither a whole number"),
    *((OPTION, f"      cudagraph_capture_sizes: {value}  #!", f"{OPTIONS}.cudagraph_capture_sizes",
       "is neither a list of whole numbers of 1 or more nor `workload`; write one of them")
      for value in ("load", "1,2,4", "true", "[]", "[1, workload]", "[0, 1]")),
    (OPTION, "      max-cudagraph-capture-size: workload  #!\n      cudagraph-capture-sizes: workload",
     f"{OPTIONS}.max-cudagraph-capture-size", "max-cudagraph-capture-size: workload and cudagraph-capture-sizes: workload both say"),
    (OPTION, "      max-cudagraph-capture-size: 512\n      cudagraph-capture-sizes: workload  #!",
     f"{OPTIONS}.cudagraph-capture-sizes", "max-cudagraph-capture-size: 512 and cudagraph-capture-sizes: workload both say"),
    (OPTION, "      max-cudagraph-capture-size: workload  #!\n      cudagraph-capture-sizes: [1, 2]",
     f"{OPTIONS}.max-cudagraph-capture-size", "vLLM ends where the two differ; leave one of them out, or set it to null"),
    (VARIABLE, "      omp_num_threads: 2  #!", "deployments.plain.variables.omp_num_threads", "upper-case"),
    (VARIABLE, "      OMP_DYNAMIC: true  #!", "deployments.plain.variables.OMP_DYNAMIC", "ambiguous"),
    (VARIABLE, "      VLLM_USE_RUST_FRONTEND: 1  #!", "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     "does not run the middleware by which every route asks for the deployment's key"),
    (VARIABLE, '      VLLM_USE_RUST_FRONTEND: "true"  #!', "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     "Remove the variable: the Python front end, vLLM's default, serves then"),
    (VARIABLE, "      CUDA_VISIBLE_DEVICES: 1  #!", "deployments.plain.variables.CUDA_VISIBLE_DEVICES",
     "export it in the shell that starts snakemake"),
    (VARIABLE, '      VLLM_USE_RUST_FRONTEND: 1  #!\n      CUDA_VISIBLE_DEVICES: "0"', "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     "serves then. CUDA_VISIBLE_DEVICES is refused too: servemark gives each server its share of the GPUs"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      variables.VLLM_USE_RUST_FRONTEND: [0, 1]  #!",
     "sweeps[0].grid.variables.VLLM_USE_RUST_FRONTEND[1]", "does not run the middleware"),
    (VARIABLE, "      OMP_DYNAMIC:  #!", "deployments.plain.variables.OMP_DYNAMIC", 'write ""'),
    (VARIABLE, "      OMP_PLACES: [1]  #!", "deployments.plain.variables.OMP_PLACES", "must be text or a number"),
    ("    model: tiny\n", "    model: tiny\n    port: 80  #!\n", "deployments.plain.port", "a port from 1024 to 65535"),
    # workloads
    ("    dataset: random", "    dataset: randm  #!", "workloads.chat.dataset", "did you mean `random`?"),
    ("    dataset: random", "    datset: random  #!", "workloads.chat.datset", "did you mean `dataset`?"),
    ("    dataset: random", "    dataset: 5  #!", "workloads.chat.dataset", "allowed: random"),
    ("    dataset: random", "    dataset:  #!", "workloads.chat.dataset", "allowed: random"),
    ("    dataset: random", "    dataset: [random]  #!", "workloads.chat.dataset", "allowed: random"),
    ("workloads:\n", "workloads:\n  other: random  #!\n", "workloads.other", "must be a mapping of keys"),
    ("workloads:\n", "workloads:\n  random: {}  #!\n", "workloads.random.dataset", "is missing"),
    ("    requests: 32", "    requests: 32\n    random: 1  #!", "workloads.chat.random", "is an unknown key"),
    ("    input_tokens: 64", "    input_tokens: '64'  #!", "workloads.chat.input_tokens",
     "whole number, without quotes"),
    ("    requests: 32", "    requests: 0  #!", "workloads.chat.requests", "must be at least 1"),
    ("  chat:\n    dataset: random", "  chat:  #!", "workloads.chat.dataset", "is missing"),
    (LOAD, "    concurrency: [1, 4, 1]  #!", "workloads.chat.concurrency", "holds 1 twice"),
    (LOAD, "    concurrency: 0  #!", "workloads.chat.concurrency", "must be at least 1"),
    (LOAD, "    concurrency: []  #!", "workloads.chat.concurrency", "must not be empty"),
    (LOAD, "    concurrency:\n      - 1\n      - x  #!", "workloads.chat.concurrency[1]", "whole number"),
    ("  chat:\n", "  chat:  #!\n", "workloads.chat.concurrency", "give `concurrency` or `request_rate`"),
    (LOAD, "    request_rate: 2\n    concurrency: [1, 4]  #!", "workloads.chat.concurrency",
     "takes one number beside `request_rate`"),
    (LOAD, "    request_rate: 1e-3  #!", "workloads.chat.request_rate", "0.001"),
    (LOAD, "    request_rate: .inf  #!", "workloads.chat.request_rate", "must be"),
    (LOAD, "    request_rate: [0.5, 0.50000001]  #!", "workloads.chat.request_rate", "holds 0.5 twice"),
    (LOAD, "    concurrency: 4\n    client_options:\n      num-prompts: 3  #!",
     "workloads.chat.client_options.num-prompts", "say it in `requests`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      input-len: 3  #!",
     "workloads.chat.client_options.input-len", "say it in `input_tokens`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random-prefix: 3  #!",
     "workloads.chat.client_options.random-prefix", "is a beginning of `random-prefix-len`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      num_prom: 3  #!",
     "workloads.chat.client_options.num_prom", "is a beginning of `num-prompts`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random_prefix_len: many  #!",
     "workloads.chat.client_options.random_prefix_len", "must be a whole number of at least 0"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random-prefix-len: true  #!",
     "workloads.chat.client_options.random-prefix-len", "must be a whole number of at least 0"),
    (LOAD, "    concurrency: [8, 4]\n    clients: 5  #!", "workloads.chat.clients", "is more than the 4 of `concurrency`"),
    ("    requests: 32", "    requests: [32, 64, 9]  #!", "workloads.chat.requests",
     "has 3 values and `concurrency` has 2; give one for each"),
    ("    requests: 32", "    requests: [32, 0]  #!", "workloads.chat.requests[1]", "must be at least 1"),
    ("    requests: 32", "    requests: []  #!", "workloads.chat.requests", "must not be empty"),
    ("    requests: 32", "    requests:  #!", "workloads.chat.requests", "must be a whole number; it is empty"),
    ("    requests: 32\n" + LOAD, "    requests: [32, 3]\n    concurrency: [8, 16]\n    clients: 4  #!", "workloads.chat.clients",
     "is more than the 3 `requests`"),
    (LOAD, "    request_rate: 2\n    clients: 33  #!", "workloads.chat.clients", "is more than the 32 `requests`"),
    (LOAD, "    concurrency: 4\n    clients: 0  #!", "workloads.chat.clients", "must be `auto` or a whole number from 1 to 1024"),
    (LOAD, "    concurrency: 4\n    clients: true  #!", "workloads.chat.clients", "must be `auto` or a whole number from 1 to 1024"),
    (LOAD, "    concurrency: 4\n    clients: auto  #!\n    client_options:\n      ramp-up-strategy: linear",
     "workloads.chat.clients", "`client_options.ramp-up-strategy` speaks of the whole load"),
    (LOAD, "    concurrency: 4\n    ask: replca  #!", "workloads.chat.ask", "did you mean `replica`?"),
    (LOAD, "    concurrency: 4\n    ask: replica  #!", "workloads.chat.ask", "deployments.plain has one server and no router"),
    # the cluster
    ("run: demo", "run: demo\ncluster: slrum  #!", "cluster", "there is no file config/clusters/slrum.yaml"),
    ("run: demo", "run: demo\ncluster: ./site.yaml  #!", "cluster", "there is no file site.yaml"),
    ("run: demo", "run: demo\ncluster: {scheduler: slurm}  #!", "cluster", "must be NAME of config/clusters/NAME.yaml"),
    ("run: demo", "run: demo\naccount: mine  #!", "account",
     "it belongs in the cluster's file, config/clusters/NAME.yaml"),
    # the rest
    ("run: demo", "run: demo\ncache: results/demo/x  #!", "cache", "lie inside one another"),
    ("run: demo", "run: demo\ncache: $SCRATCH/x  #!", "cache", "--config cache=$SCRATCH/cache"),
    ("run: demo", "run: demo\naccept_invalid: [plain]  #!", "accept_invalid[0]", "`deployment/point`"),
    ("run: demo", "run: demo\naccept_invalid: plain/x  #!", "accept_invalid", "must be a list"),
    ("run: demo", "run: demo\ntimeouts:\n  stop: 0  #!", "timeouts.stop", "must be greater than 0"),
    ("run: demo", "run: demo\nverdict:\n  max_failed_fraction: 5  #!", "verdict.max_failed_fraction", "at most 1"),
    ("run: demo", "run: demo\nshare_ledger: 1  #!", "share_ledger", "must be true or false"),
    ("models:\n  tiny:\n    source: builtin:tiny-dense", "models: {}  #!", "models", "must not be empty"),
    ("models:\n  tiny:\n    source: builtin:tiny-dense", "models: [tiny]  #!", "models", "must be a mapping of names"),
    # sweeps
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chatt  #!\n    grid: {requests: [1]}", "sweeps[0].over",
     "did you mean `workloads.chat`?"),
    ("run: demo", "run: demo\nsweeps:\n  - over: models.tiny  #!\n    grid: {source: [a]}", "sweeps[0].over",
     "`deployments.NAME` or `workloads.NAME`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat  #!", "sweeps[0]", "exactly one of `grid` and `zip`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {}  #!", "sweeps[0].grid", "holds no key"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {requests: []}  #!", "sweeps[0].grid",
     "no values"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {requests: [{a: 1}]}  #!", "sweeps[0].grid",
     "plain values or lists"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat  #!\n    zip: {requests: [1, 2], seed: [1]}",
     "sweeps[0]", "these have: requests 2, seed 1"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:\n      requets: [1]  #!",
     "sweeps[0].grid.requets", "is not a key of it; did you mean `requests`?"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:\n      requests.x: [1]  #!",
     "sweeps[0].grid.requests.x", "`requests` has no keys inside it"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      topology: [1]  #!",
     "sweeps[0].grid.topology", "takes a key inside it, `topology.KEY`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      topology.nodes: [1, 2]  #!",
     "sweeps[0].grid.topology.nodes[1]", "more than one node needs a scheduler"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n      options.dtype: [a_b, a-b]",
     "sweeps[0].grid", "the same name, deployments.plain-dtype-a-b"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n"
     "      options.a_b: [1]\n      options.a-b: [2]",
     "sweeps[0].grid", "same option twice"),
    ("run: demo", f"run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n      options.x: [{'y' * 90}]",
     "sweeps[0].grid", "more than 80 characters"),
    ("run: demo", f"run: demo\nsweeps:\n  - over: workloads.chat\n    grid:  #!\n      seed: {list(range(1001))}",
     "sweeps[0].grid", "makes 1001 variants; at most 1000"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {seed: [1]}\n  - over: workloads.chat  #!\n"
     "    grid: {requests: [8]}", "sweeps[1].over", "is swept already"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:  #!\n      request_rate: [1, 2]",
     "sweeps[0].grid", "makes workloads.chat-request-rate-1, and there concurrency: takes one number"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "text"), BAD, ids=[f"{number:03d}-{case[2]}" for number, case in enumerate(BAD)])
def test_a_fault_is_told_with_line_key_and_hint(tmp_path, monkeypatch, old, new, key, text):
    monkeypatch.chdir(tmp_path)
    assert BASE.count(old) >= 1
    config = BASE.replace(old, new, 1)
    if text.startswith("give `concurrency`"):
        config = config.replace("    concurrency: [1, 4]\n", "")
    line = next(number for number, row in enumerate(config.splitlines(), 1) if "#!" in row)
    path = write(tmp_path, config)
    message = failure(path)
    entry = re.search(rf"^  {re.escape(str(path))}:{line}: {re.escape(key)}: .*(\n      .*)*", message, re.MULTILINE)
    assert entry, message
    assert text in entry[0]
    assert "nothing was started" in message and "what to do: " in message


def test_a_wrong_load_is_not_told_again_at_its_numbers_of_requests(tmp_path):
    config = BASE.replace("    requests: 32", "    requests: [10, 20]").replace(LOAD, "    concurrency: 4\n    request_rate: [1, 0]")
    message = failure(write(tmp_path, config))
    assert "workloads.chat.request_rate[1]" in message and "give one for each" not in message


def test_the_base_of_these_cases_is_valid(tmp_path):
    assert load(write(tmp_path, BASE)).run == "demo"


def test_all_faults_are_told_together_in_the_order_of_the_file(tmp_path):
    text = BASE.replace("run: demo", "run: Demo").replace("lock: cpu", "lock: cuda11").replace("requests: 32", "requests: 0")
    text = text.replace("    model: tiny", "    model: tinny")
    message = failure(write(tmp_path, text))
    assert message.startswith("The configuration has 4 problems; nothing was started.")
    lines = [int(number) for number in re.findall(r"my\.yaml:(\d+): ", message)]
    assert lines == [1, 7, 10, 23]


def test_a_long_list_of_faults_and_choices_is_cut(tmp_path):
    data = yaml.safe_load(BASE)
    data["models"] = {f"m{number}": {"source": "builtin:tiny-dense"} for number in range(30)}
    data["deployments"] = {f"d{number}": {"model": "x", "environment": "cpu"} for number in range(60)}
    message = failure(write(tmp_path, yaml.safe_dump(data)))
    assert "has 60 problems" in message and "... and 10 more" in message
    assert "and 10 more\n" in message.split("allowed: ", 1)[1]


SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OPTION, f"      api-key: {SECRET}"),
        (OPTION, f"      hf_token: {SECRET}"),
        (VARIABLE, f"      HF_TOKEN: {SECRET}"),
        (VARIABLE, f"      DB_PASSWORD: [{SECRET}]"),
        ("run: demo", f"run: demo\napi_key: {SECRET}"),
        ("run: demo", f"run: demo\nextra: {{password: {SECRET}}}"),
        ("run: demo", f"run: demo\nextra: [{SECRET}]"),
        ("run: demo", f"run: demo\nsweeps: [{{over: deployments.plain, grid: {{variables.HF_TOKEN: [{SECRET}]}}}}]"),
        (
            "run: demo",
            f"run: demo\nsweeps: [{{over: workloads.chat, grid: {{client_options.header: [{SECRET * 9}]}}}}]",
        ),
        (LOAD, f"    concurrency: 1\n    client_options: {{header: {SECRET}}}"),
        (VARIABLE, f"      HF_TOKEN: {SECRET}: broken"),
    ],
)
def test_a_secret_is_refused_and_never_printed(tmp_path, old, new):
    assert SECRET not in failure(write(tmp_path, BASE.replace(old, new)))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_CPU_KVCACHE_SPACE", "VLLM_MAX_TOKENS", "KEYBOARD"])
def test_names_that_only_resemble_a_secret_are_allowed(tmp_path, name):
    config = load(write(tmp_path, BASE.replace("OMP_NUM_THREADS", name)))
    assert config.deployments["plain"].variables == {name: "2"}


@pytest.mark.parametrize("value", ["0", '"0"', '" 0 "'])
def test_the_rust_front_end_may_be_switched_off(tmp_path, value):
    config = load(write(tmp_path, BASE.replace("OMP_NUM_THREADS: 2", f"VLLM_USE_RUST_FRONTEND: {value}")))
    assert config.deployments["plain"].variables["VLLM_USE_RUST_FRONTEND"].strip() == "0"


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD_X_PASSWORD"])
def test_variables_that_hold_secrets_are_refused(tmp_path, name):
    message = failure(write(tmp_path, BASE.replace("OMP_NUM_THREADS", name)))
    assert f"my.yaml:17: deployments.plain.variables.{name}: looks like a secret" in message


def _places(node, path=()):
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _places(inner, (*path, key))


JUNK = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    float("nan"),
    "",
    "x",
    "a/b",
    "../..",
    "\0",
    "{x}",
    [],
    [None],
    {},
    {"x": {"y": []}},
    {1: 2},
]


@pytest.mark.parametrize("place", [place for place in _places(yaml.safe_load(BASE)) if place], ids=str)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_anywhere_is_accepted_or_refused_at_its_place_but_never_crashes(tmp_path, monkeypatch, place, junk):
    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load(BASE)
    inner = data
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = junk
    try:
        outcome = validate(data)
    except ConfigError as error:
        outcome = error
    if isinstance(outcome, ConfigError):
        assert str(place[0]) in str(outcome) or "under `" in str(outcome)
    else:
        assert isinstance(outcome, Config)
