"""Each fault of a configuration gives a message with file, line, key and remedy."""

from __future__ import annotations

import re

import pytest
import yaml

from builders.config_text import BASE, failure, write
from servemark.cli import reference
from servemark.config import problems
from servemark.config.cluster import Site
from servemark.config.load import load
from servemark.config.model import Config

RANKS = "      tensor_parallel: 1"
OPTION = "      max-model-len: 512"
OPTIONS = "deployments.plain.options"
VARIABLE = "      OMP_NUM_THREADS: 2"
LOAD = "    concurrency: [1, 4]"

# (text of BASE, what takes its place with "#!" on the line the message must name, key, part of the message)
BAD = [
    # unknown keys
    ("run: demo", "run: demo\nsweep: []  #!", "sweep", "`sweeps`"),
    ("run: demo", "run: demo\nzzz: 1  #!", "zzz", "allowed: run, models, environments"),
    ("    topology:", "    topolgy:  #!", "deployments.plain.topolgy", "`topology`"),
    ("    model: tiny\n", "    model: tiny\n    tensor_parallel: 2  #!\n", "deployments.plain.tensor_parallel",
     "NAME.topology"),
    ("    model: tiny\n", "    model: tiny\n    max-num-seqs: 2  #!\n", "deployments.plain.max-num-seqs",
     "`vllm serve`"),
    ("    requests: 32", "    requests: 32\n    burstiness: 2  #!", "workloads.chat.burstiness",
     "`client_options`"),
    ("    requests: 32", "    requests: 32\n    share_ledger: true  #!", "workloads.chat.share_ledger",
     ""),
    (RANKS, "      tensor-paralel: 1  #!", "deployments.plain.topology.tensor-paralel",
     "`tensor_parallel`"),
    ("    input_tokens: 64", "    input_tokens: 64\n    Concurency: 2  #!", "workloads.chat.Concurency",
     "`concurrency`"),
    ("run: demo", "run: demo\ntimeouts:\n  stal: 3  #!", "timeouts.stal", "`stall`"),
    ("run: demo", "run: demo\nverdict:\n  min_duration: 3  #!", "verdict.min_duration",
     "`min_duration_s`"),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    allow_pickle: true  #!",
     "models.tiny.allow_pickle", "allowed: source, served_name, trust_remote_code, load_format"),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    revision: main  #!",
     "models.tiny.revision", "hf:ORG/NAME@REVISION"),
    ("    lock: cpu", "    container: vllm.sif  #!", "environments.cpu.container", "{image: docker://"),
    ("    dataset: random", "    dataset: ./mine.jsonl  #!", "workloads.chat.dataset", "{file: ./mine.jsonl}"),
    # other tools' names for keys
    (RANKS, "      tp: 2  #!", "deployments.plain.topology.tp", "`tensor_parallel`"),
    (RANKS, "      tensor-parallel-size: 2  #!", "deployments.plain.topology.tensor-parallel-size",
     "`tensor_parallel`"),
    (RANKS, "      pp: 2  #!", "deployments.plain.topology.pp", "`pipeline_parallel`"),
    (RANKS, "      dp_size: 2  #!", "deployments.plain.topology.dp_size", "`data_parallel`"),
    (RANKS, "      gpus: 2  #!", "deployments.plain.topology.gpus", "`tensor_parallel`"),
    ("    environment: cpu", "    environment: cpu\n    tensor_parallel_size: 2  #!", "deployments.plain.tensor_parallel_size",
     "`tensor_parallel`"),
    ("    environment: cpu", "    environment: cpu\n    gpus: 2  #!", "deployments.plain.gpus",
     "`tensor_parallel`"),
    ("    environment: cpu", "    environment: cpu\n    max_len: 2  #!", "deployments.plain.max_len",
     "`max-model-len`"),
    ("    environment: cpu", "    environment: cpu\n    env: {A: b}  #!", "deployments.plain.env", "`variables`"),
    ("    requests: 32", "    num_prompts: 32  #!", "workloads.chat.num_prompts", "`requests`"),
    ("    requests: 32", "    requests: 32\n    qps: 2  #!", "workloads.chat.qps", "`request_rate`"),
    (OPTION, "      tensor-parallel: 2  #!", f"{OPTIONS}.tensor-parallel", "`topology.tensor_parallel`"),
    (OPTION, "      --tensor-parallel: 2  #!", f"{OPTIONS}.--tensor-parallel", "`topology.tensor_parallel`"),
    (OPTION, "      --tensor-parallel-size: 2  #!", f"{OPTIONS}.--tensor-parallel-size", "`topology.tensor_parallel`"),
    (OPTION, "      tp: 2  #!", f"{OPTIONS}.tp", "`topology.tensor_parallel`"),
    # frequent mistakes
    ("builtin:tiny-dense", "https://huggingface.co/org/name  #!", "models.tiny.source", "`hf:org/name`"),
    ("builtin:tiny-dense", "https://hf.co/org/name/tree/v1.0/  #!", "models.tiny.source", "`hf:org/name@v1.0`"),
    ("builtin:tiny-dense", "hf.co/org/name/blob/main/config.json?x=1  #!", "models.tiny.source", "`hf:org/name@main`"),
    ("builtin:tiny-dense", "hf://org/name  #!", "models.tiny.source", "`hf:org/name`"),
    ("builtin:tiny-dense", "HF:org/name  #!", "models.tiny.source", "`hf:org/name`"),
    ("    lock: cpu", "    lock: 0.33  #!", "environments.cpu.lock", "cuda13"),
    ("    lock: cpu", "    vllm: 0.33  #!", "environments.cpu.vllm", "`lock`"),
    ("    lock: cpu", "    conda: my-env  #!", "environments.cpu.conda", "`prefix`"),
    ("    lock: cpu", "    docker: vllm/vllm-openai  #!", "environments.cpu.docker", "`container`"),
    ("    lock: cpu", "    container:\n      image: vllm/vllm-openai:v0.32.0  #!", "environments.cpu.container.image",
     "`docker://vllm/vllm-openai:v0.32.0`"),
    ("    dataset: random", "    dataset: {path: ./prompts.jsonl}  #!", "workloads.chat.dataset.path", "`file`"),
    (LOAD, "    concurrency: {search: {min: 1, to: 2}}  #!", "workloads.chat.concurrency.search.min", "`from`"),
    (LOAD, "    concurrency: {search: {from: 1, max: 2}}  #!", "workloads.chat.concurrency.search.max", "`to`"),
    ("    requests: 32", "    requests: 4k  #!", "workloads.chat.requests", "4096"),
    ("    requests: 32", "    requests: 32\n    slo: {ttft_ms: {p99: 800ms}}  #!", "workloads.chat.slo.ttft_ms.p99", "unit"),
    # names
    ("run: demo", "run: ../up  #!", "run", ""),
    ("run: demo", "run: Demo  #!", "run", ""),
    ("run: demo", "run: no  #!", "run", ""),
    ("run: demo", "run: 2026-01-02  #!", "run", ""),
    ("run: demo", "run:  #!", "run", ""),
    ("run: demo", f"run: {'x' * 81}  #!", "run", "80"),
    ("  plain:", "  pl_ain:  #!", "deployments.pl_ain", ""),
    ("  chat:", "  7:  #!", "workloads[7]", ""),
    # references
    ("    model: tiny", "    model: tinny  #!", "deployments.plain.model", "`tiny`"),
    ("    environment: cpu", "    environment: gpu  #!", "deployments.plain.environment", "allowed: cpu"),
    ("    model: tiny\n", "    model: tiny\n    workloads:\n      - chat\n      - chta  #!\n",
     "deployments.plain.workloads[1]", "`chat`"),
    ("    model: tiny\n", "    model: tiny\n    workloads: [chat, chat]  #!\n", "deployments.plain.workloads",
     ""),
    ("    model: tiny\n", "    model: tiny\n    workloads: []  #!\n", "deployments.plain.workloads",
     ""),
    # models and environments
    ("builtin:tiny-dense", "builtin:tiny-dens  #!", "models.tiny.source", "`builtin:tiny-dense`"),
    ("builtin:tiny-dense", "hf:Qwen3-0.6B  #!", "models.tiny.source", "hf:ORG/NAME@REVISION"),
    ("builtin:tiny-dense", "Qwen/Qwen3-0.6B  #!", "models.tiny.source", ""),
    ("builtin:tiny-dense", "mydir  #!", "models.tiny.source", "NAME"),
    ("builtin:tiny-dense", "$SCRATCH/model  #!", "models.tiny.source", ""),
    ("    source: builtin:tiny-dense", "    trust_remote_code: 'yes'  #!\n    source: ./x",
     "models.tiny.trust_remote_code", ""),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    served_name: a name  #!", "models.tiny.served_name", ""),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    served_name: org//m  #!", "models.tiny.served_name", ""),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    served_name: 'a\"b'  #!", "models.tiny.served_name", ""),
    ("    source: builtin:tiny-dense", "    source: builtin:tiny-dense\n    served_name: other  #!\n  other: {source: builtin:tiny-moe}",
     "models.tiny.served_name", "models.other"),
    ("  tiny:\n    source: builtin:tiny-dense", "  tiny:  #!\n    trust_remote_code: true", "models.tiny.source",
     ""),
    ("    lock: cpu", "    lock: cuda14  #!", "environments.cpu.lock", "allowed: auto, cpu, cuda12, cuda13"),
    ("    lock: cpu", "    lock: cpuu  #!", "environments.cpu.lock", "`cpu`"),
    ("    lock: cpu", "    container: image.sif  #!", "environments.cpu.container", ""),
    ("  cpu:\n    lock: cpu", "  cpu:  #!\n    lock: cpu\n    prefix: /opt/env", "environments.cpu",
     "`prefix`"),
    ("  cpu:\n    lock: cpu", "  cpu: {}  #!", "environments.cpu", ""),
    ("    lock: cpu", "    prefix: /opt/env\n    wheels: /opt/wheels  #!", "environments.cpu.wheels", "`lock`"),
    ("    lock: cpu", "    prefix: 5  #!", "environments.cpu.prefix", ""),
    # topology
    (RANKS, "      nodes: 2  #!", "deployments.plain.topology.nodes",
     "`cluster: NAME`"),
    (RANKS, "      client: own  #!", "deployments.plain.topology.client",
     ""),
    (RANKS, "      client: onw  #!", "deployments.plain.topology.client", "`own`"),
    (RANKS, "      replicas: 0  #!", "deployments.plain.topology.replicas", "1"),
    (RANKS, "      tensor_parallel: 0  #!", "deployments.plain.topology.tensor_parallel",
     "1"),
    (RANKS, "      tensor_parallel: 1.5  #!", "deployments.plain.topology.tensor_parallel",
     ""),
    (RANKS, "      tensor_parallel: true  #!", "deployments.plain.topology.tensor_parallel",
     ""),
    (RANKS, "      pipeline_parallel: 2\n      executor: single  #!",
     "deployments.plain.topology.executor",
     "`mp`"),
    (RANKS, "      data_parallel: 2\n      executor: single  #!",
     "deployments.plain.topology.executor", "allowed: "),
    (RANKS, "      balancing: router  #!", "deployments.plain.topology.balancing", "data_parallel"),
    (RANKS, "      routing: least_requests  #!", "deployments.plain.topology.routing",
     "`balancing: router`"),
    (RANKS, "      routing: least_request  #!", "deployments.plain.topology.routing", "`least_requests`"),
    (RANKS, "      balancing: ruoter  #!", "deployments.plain.topology.balancing", "`router`"),
    (RANKS, "      executor: rya  #!", "deployments.plain.topology.executor", "`ray`"),
    ("    topology:\n      tensor_parallel: 1", "    topology: 4  #!", "deployments.plain.topology",
     ""),
    # options and variables
    (OPTION, "      host: 0.0.0.0  #!", "deployments.plain.options.host", "`port`"),
    (OPTION, "      tensor_parallel_size: 2  #!", "deployments.plain.options.tensor_parallel_size",
     "`topology.tensor_parallel`"),
    (OPTION, "      ssl-keyfile: k.pem  #!", "deployments.plain.options.ssl-keyfile", ""),
    (OPTION, "      data-parallel-rank: 1  #!", "deployments.plain.options.data-parallel-rank",
     "`topology.data_parallel`"),
    (OPTION, "      no-headless: true  #!", "deployments.plain.options.no-headless", ""),
    (OPTION, "      load-format: pt  #!", "deployments.plain.options.load-format", "pickles"),
    (OPTION, "      load-format: dummy  #!", "deployments.plain.options.load-format", "`load_format: dummy`"),
    (OPTION, "      trust-remote-code: true  #!", "deployments.plain.options.trust-remote-code",
     "`trust_remote_code: true`"),
    (OPTION, "      --max-model-len: 512  #!", "deployments.plain.options.--max-model-len",
     "`max-model-len`"),
    (OPTION, "      max model len: 512  #!", "deployments.plain.options.max model len",
     ""),
    ("    options:\n", "    options:  #!\n      max_model_len: 1\n", "deployments.plain.options",
     ""),
    (OPTION, "      hf-overrides:  #!\n        a: 1", "deployments.plain.options.hf-overrides",
     ""),
    (OPTION, "      max-model-len: .inf  #!", "deployments.plain.options.max-model-len", ""),
    (OPTION, "      revision: 2026-01-02  #!", "deployments.plain.options.revision", ""),
    (OPTION, "      max-cudagraph-capture-size: worklod  #!", f"{OPTIONS}.max-cudagraph-capture-size",
     "`workload`"),
    (OPTION, "      max-cudagraph-capture-size: [1, 2]  #!", f"{OPTIONS}.max-cudagraph-capture-size", ""),
    (OPTION, "      max-cudagraph-capture-size: 2.5  #!", f"{OPTIONS}.max-cudagraph-capture-size", ""),
    *((OPTION, f"      cudagraph_capture_sizes: {value}  #!", f"{OPTIONS}.cudagraph_capture_sizes",
       "`workload`")
      for value in ("load", "1,2,4", "true", "[]", "[1, workload]", "[0, 1]")),
    (OPTION, "      max-cudagraph-capture-size: workload  #!\n      cudagraph-capture-sizes: workload",
     f"{OPTIONS}.max-cudagraph-capture-size", ""),
    (OPTION, "      max-cudagraph-capture-size: 512\n      cudagraph-capture-sizes: workload  #!",
     f"{OPTIONS}.cudagraph-capture-sizes", "512"),
    (OPTION, "      max-cudagraph-capture-size: workload  #!\n      cudagraph-capture-sizes: [1, 2]",
     f"{OPTIONS}.max-cudagraph-capture-size", ""),
    (VARIABLE, "      omp_num_threads: 2  #!", "deployments.plain.variables.omp_num_threads", ""),
    (VARIABLE, "      OMP_DYNAMIC: true  #!", "deployments.plain.variables.OMP_DYNAMIC", ""),
    (VARIABLE, "      VLLM_USE_RUST_FRONTEND: 1  #!", "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     ""),
    (VARIABLE, '      VLLM_USE_RUST_FRONTEND: "true"  #!', "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     ""),
    (VARIABLE, "      CUDA_VISIBLE_DEVICES: 1  #!", "deployments.plain.variables.CUDA_VISIBLE_DEVICES",
     ""),
    (VARIABLE, '      VLLM_USE_RUST_FRONTEND: 1  #!\n      CUDA_VISIBLE_DEVICES: "0"', "deployments.plain.variables.VLLM_USE_RUST_FRONTEND",
     "CUDA_VISIBLE_DEVICES"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      variables.VLLM_USE_RUST_FRONTEND: [0, 1]  #!",
     "sweeps[0].grid.variables.VLLM_USE_RUST_FRONTEND[1]", ""),
    (VARIABLE, "      OMP_DYNAMIC:  #!", "deployments.plain.variables.OMP_DYNAMIC", ""),
    (VARIABLE, "      OMP_PLACES: [1]  #!", "deployments.plain.variables.OMP_PLACES", ""),
    ("    model: tiny\n", "    model: tiny\n    port: 80  #!\n", "deployments.plain.port", "65535"),
    # workloads
    ("    output_tokens: 32", "    output_tokens: recorded  #!", "workloads.chat.output_tokens", "{file: ...}"),
    ("    dataset: random", "    dataset: random\n    share_prompts: true  #!", "workloads.chat.share_prompts", "{sharegpt: ...}"),
    ("    dataset: random\n    input_tokens: 64", "    dataset: {file: p.jsonl}\n    input_tokens: 64  #!",
     "workloads.chat.input_tokens", "`dataset: random`"),
    ("    dataset: random", "    dataset: {hf: a/b, split: ''}  #!", "workloads.chat.dataset.split", ""),
    ("    output_tokens: 32", "    output_tokens: record  #!", "workloads.chat.output_tokens", "integer"),
    (LOAD, LOAD + "\n    client_options:\n      dataset-path: x  #!", "workloads.chat.client_options.dataset-path", "`dataset`"),
    (LOAD, LOAD + "\n    client_options:\n      no-oversample: true  #!", "workloads.chat.client_options.no-oversample", "`dataset`"),
    (LOAD, LOAD + "\n    client_options:\n      custom-output-len: 5  #!", "workloads.chat.client_options.custom-output-len",
     "`output_tokens`"),
    (LOAD, LOAD + "\n    client_options:\n      prefix-repetition-num-prefixes: 2  #!",
     "workloads.chat.client_options.prefix-repetition-num-prefixes", "`dataset.prefix`"),
    ("    dataset: random", "    dataset: randm  #!", "workloads.chat.dataset", "`random`"),
    ("    dataset: random", "    datasett: random  #!", "workloads.chat.datasett", "`dataset`"),
    ("    dataset: random", "    dataset: 5  #!", "workloads.chat.dataset", "allowed: random"),
    ("    dataset: random", "    dataset:  #!", "workloads.chat.dataset", "allowed: random"),
    ("    dataset: random", "    dataset: [random]  #!", "workloads.chat.dataset", "allowed: random"),
    ("workloads:\n", "workloads:\n  other: random  #!\n", "workloads.other", ""),
    ("workloads:\n", "workloads:\n  random: {}  #!\n", "workloads.random.dataset", ""),
    ("    requests: 32", "    requests: 32\n    random: 1  #!", "workloads.chat.random", ""),
    ("    input_tokens: 64", "    input_tokens: '64'  #!", "workloads.chat.input_tokens",
     ""),
    ("    requests: 32", "    requests: 0  #!", "workloads.chat.requests", "1"),
    ("  chat:\n    dataset: random", "  chat:  #!", "workloads.chat.dataset", ""),
    (LOAD, "    concurrency: [1, 4, 1]  #!", "workloads.chat.concurrency", "1"),
    (LOAD, "    concurrency: 0  #!", "workloads.chat.concurrency", "1"),
    (LOAD, "    concurrency: []  #!", "workloads.chat.concurrency", ""),
    (LOAD, "    concurrency:\n      - 1\n      - x  #!", "workloads.chat.concurrency[1]", ""),
    ("  chat:\n", "  chat:  #!\n", "workloads.chat.concurrency", "`request_rate`"),
    (LOAD, "    request_rate: 2\n    concurrency: [1, 4]  #!", "workloads.chat.concurrency",
     "`request_rate`"),
    (LOAD, "    request_rate: 1e-3  #!", "workloads.chat.request_rate", "0.001"),
    (LOAD, "    request_rate: .inf  #!", "workloads.chat.request_rate", ""),
    (LOAD, "    request_rate: [0.5, 0.50000001]  #!", "workloads.chat.request_rate", "0.5"),
    (LOAD, "    concurrency: 4\n    client_options:\n      num-prompts: 3  #!",
     "workloads.chat.client_options.num-prompts", "`requests`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      input-len: 3  #!",
     "workloads.chat.client_options.input-len", "`input_tokens`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random-prefix: 3  #!",
     "workloads.chat.client_options.random-prefix", "`random-prefix-len`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      num_prom: 3  #!",
     "workloads.chat.client_options.num_prom", "`requests`"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random_prefix_len: many  #!",
     "workloads.chat.client_options.random_prefix_len", "0"),
    (LOAD, "    concurrency: 4\n    client_options:\n      random-prefix-len: true  #!",
     "workloads.chat.client_options.random-prefix-len", "0"),
    (LOAD, "    concurrency: [8, 4]\n    clients: 5  #!", "workloads.chat.clients", "4"),
    ("    requests: 32", "    requests: [32, 64, 9]  #!", "workloads.chat.requests",
     "`concurrency`"),
    ("    requests: 32", "    requests: [32, 0]  #!", "workloads.chat.requests[1]", "1"),
    ("    requests: 32", "    requests: []  #!", "workloads.chat.requests", ""),
    ("    requests: 32", "    requests:  #!", "workloads.chat.requests", ""),
    ("    requests: 32\n" + LOAD, "    requests: [32, 3]\n    concurrency: [8, 16]\n    clients: 4  #!", "workloads.chat.clients",
     "3"),
    (LOAD, "    request_rate: 2\n    clients: 33  #!", "workloads.chat.clients", "32"),
    (LOAD, "    concurrency: 4\n    clients: 0  #!", "workloads.chat.clients", "`auto`"),
    (LOAD, "    concurrency: 4\n    clients: true  #!", "workloads.chat.clients", "`auto`"),
    (LOAD, "    concurrency: 4\n    clients: auto  #!\n    client_options:\n      ramp-up-strategy: linear",
     "workloads.chat.clients", "`client_options.ramp-up-strategy`"),
    (LOAD, "    concurrency: 4\n    ask: replca  #!", "workloads.chat.ask", "`replica`"),
    (LOAD, "    concurrency: 4\n    ask: replica  #!", "workloads.chat.ask", "deployments.plain"),
    # the cluster
    ("run: demo", "run: demo\ncluster: slrum  #!", "cluster", "config/clusters/slrum.yaml"),
    ("run: demo", "run: demo\ncluster: ./site.yaml  #!", "cluster", "site.yaml"),
    ("run: demo", "run: demo\ncluster: {scheduler: slurm}  #!", "cluster", "NAME"),
    ("run: demo", "run: demo\naccount: mine  #!", "account",
     "NAME.yaml"),
    # the rest
    ("run: demo", "run: demo\ncache: results/demo/x  #!", "cache", ""),
    ("run: demo", "run: demo\ncache: $SCRATCH/x  #!", "cache", ""),
    ("run: demo", "run: demo\naccept_invalid: [plain]  #!", "accept_invalid[0]", "`deployment/point`"),
    ("run: demo", "run: demo\naccept_invalid: plain/x  #!", "accept_invalid", ""),
    ("run: demo", "run: demo\naccept_invalid: [plain/chat-c4-*, plain/chat-c8-*]  #!", "accept_invalid[1]", "plain/chat-c8-*"),
    ("run: demo", "run: demo\ntimeouts:\n  stop: 0  #!", "timeouts.stop", "0"),
    ("run: demo", "run: demo\nverdict:\n  max_failed_fraction: 5  #!", "verdict.max_failed_fraction", "0.5"),
    ("run: demo", "run: demo\nverdict:\n  output_tokens_tolerance: 1  #!", "verdict.output_tokens_tolerance", "0.5"),
    ("run: demo", "run: demo\nverdict:\n  min_requests_per_slot: 0  #!", "verdict.min_requests_per_slot", "1"),
    ("run: demo", "run: demo\nverdict:\n  max_burst_fraction: 1  #!", "verdict.max_burst_fraction", "0.9"),
    ("run: demo", "run: demo\nverdict:\n  min_in_flight: 0  #!", "verdict.min_in_flight", "0.5"),
    ("run: demo", "run: demo\nshare_ledger: 1  #!", "share_ledger", ""),
    ("models:\n  tiny:\n    source: builtin:tiny-dense", "models: {}  #!", "models", ""),
    ("models:\n  tiny:\n    source: builtin:tiny-dense", "models: [tiny]  #!", "models", ""),
    # sweeps
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chatt  #!\n    grid: {requests: [1]}", "sweeps[0].over",
     "`workloads.chat`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: models.tiny  #!\n    grid: {source: [a]}", "sweeps[0].over",
     "`deployments.NAME`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat  #!", "sweeps[0]", "`grid`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {}  #!", "sweeps[0].grid", ""),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {requests: []}  #!", "sweeps[0].grid",
     ""),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {requests: [{a: 1}]}  #!", "sweeps[0].grid",
     ""),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat  #!\n    zip: {requests: [1, 2], seed: [1]}",
     "sweeps[0]", "2"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:\n      requets: [1]  #!",
     "sweeps[0].grid.requets", "`requests`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:\n      requests.x: [1]  #!",
     "sweeps[0].grid.requests.x", "`requests`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      topology: [1]  #!",
     "sweeps[0].grid.topology", "`topology.KEY`"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:\n      topology.nodes: [1, 2]  #!",
     "sweeps[0].grid.topology.nodes[1]", ""),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n      options.dtype: [a_b, a-b]",
     "sweeps[0].grid", "deployments.plain-dtype-a-b"),
    ("run: demo", "run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n"
     "      options.a_b: [1]\n      options.a-b: [2]",
     "sweeps[0].grid", ""),
    ("run: demo", f"run: demo\nsweeps:\n  - over: deployments.plain\n    grid:  #!\n      options.x: [{'y' * 90}]",
     "sweeps[0].grid", "80"),
    ("run: demo", f"run: demo\nsweeps:\n  - over: workloads.chat\n    grid:  #!\n      seed: {list(range(1001))}",
     "sweeps[0].grid", "1001"),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid: {seed: [1]}\n  - over: workloads.chat  #!\n"
     "    grid: {requests: [8]}", "sweeps[1].over", ""),
    ("run: demo", "run: demo\nsweeps:\n  - over: workloads.chat\n    grid:  #!\n      request_rate: [1, 2]",
     "sweeps[0].grid", "workloads.chat-request-rate-1"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "text"), BAD, ids=[f"{number:03d}-{case[2]}" for number, case in enumerate(BAD)])
def test_message_has_line_key_and_hint(tmp_path, monkeypatch, old, new, key, text):
    monkeypatch.chdir(tmp_path)
    assert BASE.count(old) >= 1
    config = BASE.replace(old, new, 1)
    if (old, key) == ("  chat:\n", "workloads.chat.concurrency"):
        config = config.replace("    concurrency: [1, 4]\n", "")
    line = next(number for number, row in enumerate(config.splitlines(), 1) if "#!" in row)
    path = write(tmp_path, config)
    message = failure(path)
    entry = re.search(rf"^  {re.escape(str(path))}:{line}: {re.escape(key)}: .*(\n      .*)*", message, re.MULTILINE)
    assert entry, message
    assert text in entry[0]


def test_wrong_load_gives_no_second_fault_at_requests(tmp_path):
    config = BASE.replace("    requests: 32", "    requests: [10, 20]").replace(LOAD, "    concurrency: 4\n    request_rate: [1, 0]")
    message = failure(write(tmp_path, config))
    assert "workloads.chat.request_rate[1]: " in message and "workloads.chat.requests" not in message


@pytest.mark.parametrize(("model", "way"), [(Config, ()), (Site, ("cluster",))])
def test_hints_know_every_mapping_of_fixed_keys(model, way):
    keys = re.findall(r"^\| `([^`]+)`", "\n".join(reference.key_table(model)), re.MULTILINE)
    parents = {tuple(key.replace("[]", ".NAME").split(".")[:-1]) for key in keys}
    assert {(*way, *parent) for parent in parents} <= problems._HOMES.keys()


def test_base_of_these_cases_is_valid(tmp_path):
    assert load(write(tmp_path, BASE)).run == "demo"


def test_message_has_all_faults_in_the_order_of_the_file(tmp_path):
    text = BASE.replace("run: demo", "run: Demo").replace("lock: cpu", "lock: cuda11").replace("requests: 32", "requests: 0")
    text = text.replace("    model: tiny", "    model: tinny")
    message = failure(write(tmp_path, text))
    lines = [int(number) for number in re.findall(r"my\.yaml:(\d+): ", message)]
    assert lines == [1, 7, 10, 23]


def test_long_lists_of_faults_and_choices_are_cut(tmp_path):
    data = yaml.safe_load(BASE)
    data["models"] = {f"m{number}": {"source": "builtin:tiny-dense"} for number in range(30)}
    data["deployments"] = {f"d{number}": {"model": "x", "environment": "cpu"} for number in range(60)}
    message = failure(write(tmp_path, yaml.safe_dump(data)))
    assert message.count(".model: ") == 50 and message.split("allowed: ", 1)[1].split("\n")[0].count("m") == 21  # 20 names, "more"
