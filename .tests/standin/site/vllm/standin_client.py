"""servemark stand-in client, not `vllm bench serve`: real streaming requests, the same result file, fewer options."""

import argparse
import http.client
import json
import math
import os
import random
import statistics
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from vllm.benchmarks import datasets
from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS
from vllm.standin_faults import client_fault

BANNER = "servemark stand-in client, not vLLM"
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


@dataclass
class Output:
    """One request's outcome; the fields of vLLM's RequestFuncOutput that reach the result file."""

    prompt_len: int
    start_time: float = 0.0
    queue_time: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    output_tokens: int = 0
    generated_text: str = ""
    error: str = ""
    success: bool = False
    itl: list = field(default_factory=list)


def arguments(argv):
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    texts = {
        "base-url": None, "host": "127.0.0.1", "endpoint": "/v1/completions", "model": None,
        "served-model-name": None, "tokenizer": None, "dataset-name": "random", "dataset-path": None, "label": None, "result-dir": None,
        "result-filename": None, "percentile-metrics": "ttft,tpot,itl", "metric-percentiles": "99",
    }  # fmt: skip
    whole = {
        "port": 8000, "random-input-len": 1024, "random-output-len": 128, "custom-output-len": 256,
        "prefix-repetition-prefix-len": 256, "prefix-repetition-suffix-len": 256, "prefix-repetition-num-prefixes": 10,
        "prefix-repetition-output-len": 128, "num-prompts": 1000, "max-concurrency": None,
        "seed": 0, "num-warmups": 0, "ready-check-timeout-sec": 0,
    }  # fmt: skip
    numbers = {"request-rate": math.inf, "burstiness": 1.0, "temperature": None}
    for kind, defaults in ((str, texts), (int, whole), (float, numbers)):
        for name, default in defaults.items():
            parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--backend", default="openai", choices=list(ASYNC_REQUEST_FUNCS))
    for name in ("ignore-eos", "save-result", "save-detailed", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--metadata", nargs="*", default=[])
    args = parser.parse_known_args(argv)[0]
    args.base_url = args.base_url or f"http://{args.host}:{args.port}"
    return args


def request(args, row):
    """Send one prompt and read its stream. Like vLLM's client, keep errors as text and raise none."""
    prompt, max_tokens = row
    chat = args.endpoint == "/v1/chat/completions"
    if chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    output = Output(prompt_len=args.random_input_len, start_time=time.perf_counter())
    url = urlsplit(args.base_url)
    payload = {
        "model": args.served_model_name or args.model,
        **({"messages": prompt, "max_completion_tokens": max_tokens} if chat else {"prompt": prompt, "max_tokens": max_tokens}),
        "temperature": args.temperature,
        "ignore_eos": args.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(url.hostname, url.port or 80)
    try:
        connection.request("POST", url.path.rstrip("/") + args.endpoint, json.dumps(payload), headers)
        response = connection.getresponse()
        if response.status == 200:
            read_stream(response, output)
        else:
            output.error = response.reason
    except (OSError, http.client.HTTPException, ValueError):
        output.success = False
        output.error = traceback.format_exc()
    finally:
        connection.close()
    return output


def read_stream(response, output):
    latest = output.start_time
    first, done = True, False
    while line := response.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            done = True
            continue
        data = json.loads(line[6:])
        if choices := data.get("choices"):
            now = time.perf_counter()
            if first:
                output.ttft, first = now - output.start_time, False
            else:
                output.itl.append(now - latest)
            latest = now
            output.generated_text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
        elif usage := data.get("usage"):
            output.output_tokens = usage["completion_tokens"]
            output.prompt_len = usage["prompt_tokens"]
    # readline() does not distinguish a cut stream from an ended one; the last event does.
    if not done:
        raise http.client.IncompleteRead(b"", None)
    output.success = not first
    if first:
        output.error = "Never received a valid chunk to calculate TTFT.This response will be marked as failed!"
    output.latency = latest - output.start_time


def run(args, prompts, moments=None):
    """Send all prompts at the requested rate (or these moments) and concurrency; return the outputs in the prompts' order, and seconds."""
    rng = random.Random(args.seed)
    begin = time.perf_counter()
    due = begin
    workers = min(args.max_concurrency or len(prompts), len(prompts)) or 1

    def one(prompt, asked_at):
        queued = time.perf_counter() - asked_at
        output = request(args, prompt)
        output.queue_time = queued
        return output

    futures = []
    with ThreadPoolExecutor(workers) as pool:
        for number, prompt in enumerate(prompts):
            if moments:
                time.sleep(max(begin + moments[number] - time.perf_counter(), 0.0))
            elif math.isfinite(args.request_rate):
                due += rng.expovariate(args.request_rate)
                time.sleep(max(due - time.perf_counter(), 0.0))
            futures.append(pool.submit(one, prompt, time.perf_counter()))
        outputs = [future.result() for future in futures]
    return outputs, time.perf_counter() - begin


def percentile(values, share):
    """Return a percentile by linear interpolation between closest ranks, numpy's default."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def busiest_second(outputs):
    """Return the most tokens and most open requests in any second, as in vLLM's calculate_metrics."""
    if not outputs:
        return 0.0, 0
    begin = min(o.start_time for o in outputs)
    tokens, requests = {}, {}
    for output in outputs:
        moment = output.start_time + output.ttft - begin
        for gap in [0.0, *output.itl]:
            moment += gap
            tokens[int(moment)] = tokens.get(int(moment), 0) + 1
        for second in range(int(output.start_time - begin), int(output.start_time + output.latency - begin) + 1):
            requests[second] = requests.get(second, 0) + 1
    return float(max(tokens.values())), max(requests.values())


def result(args, outputs, seconds):
    """Return the result with the keys and order of vLLM 0.32 with --save-detailed."""
    good = [o for o in outputs if o.success]
    lengths = [o.output_tokens if o.success else 0 for o in outputs]
    total_in, total_out = sum(o.prompt_len for o in good), sum(lengths)
    peak_tokens, peak_requests = busiest_second(good)
    data = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "endpoint_type": args.backend, "backend": args.backend,
        "label": args.label, "model_id": args.model, "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": args.num_prompts,
        **dict(item.split("=", 1) for item in args.metadata),
        "request_rate": args.request_rate if math.isfinite(args.request_rate) else "inf", "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency, "duration": seconds, "completed": len(good),
        "failed": len(outputs) - len(good), "total_input_tokens": total_in, "total_output_tokens": total_out,
        "request_throughput": len(good) / seconds, "request_goodput": None, "output_throughput": total_out / seconds,
        "total_token_throughput": (total_in + total_out) / seconds, "input_lens": [o.prompt_len for o in outputs],
        "output_lens": lengths, "ttfts": [o.ttft for o in outputs], "itls": [o.itl for o in outputs],
        "latencies": [o.latency for o in outputs], "start_times": [o.start_time for o in outputs],
        "queue_times": [o.queue_time for o in outputs], "generated_texts": [o.generated_text for o in outputs],
        "errors": [o.error for o in outputs], "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests, "rtfx": 0.0,
    }  # fmt: skip
    distributions = {
        "ttft": [o.ttft for o in good],
        "tpot": [(o.latency - o.ttft) / (o.output_tokens - 1) for o in good if o.output_tokens > 1],
        "itl": [gap for o in good for gap in o.itl],
        "e2el": [o.latency for o in good],
    }
    for name, values in distributions.items():
        if name in args.percentile_metrics.split(","):
            values = [1000 * value for value in values] or [0.0]
            data[f"mean_{name}_ms"] = statistics.fmean(values)
            data[f"median_{name}_ms"] = statistics.median(values)
            data[f"std_{name}_ms"] = statistics.pstdev(values)
            for share in map(float, args.metric_percentiles.split(",")):
                data[f"p{share:g}_{name}_ms"] = percentile(values, share)
    return data


def save(args, data):
    mode = client_fault()
    if not args.save_detailed:
        for name in DETAILS:
            del data[name]
    if mode == "nan":
        data |= {"duration": math.nan, "output_throughput": math.nan, "mean_ttft_ms": math.nan}
        data["ttfts"] = [math.nan for _ in data.get("ttfts", [])]
    text = json.dumps(data)
    if mode == "truncated_json":
        text = text[: len(text) // 2]
    if args.save_result and mode != "no_file":
        name = args.result_filename or f"{args.backend}-{data['date']}.json"
        folder = Path(args.result_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def first_request(args, prompt):
    """Repeat the first request until it succeeds or the time limit passes."""
    deadline = time.perf_counter() + args.ready_check_timeout_sec
    while True:
        output = request(args, prompt)
        if output.success:
            return
        if time.perf_counter() > deadline:
            raise ValueError(
                f"Initial test run failed - Please make sure benchmark arguments are correctly specified. Error: {output.error}"
            )
        time.sleep(0.5)


def main(argv):
    print(BANNER, flush=True)
    args = arguments(argv)
    if client_fault() == "exit_1":
        print("ValueError: stand-in client fault exit_1", file=sys.stderr)
        return 1
    if client_fault() == "hang":
        threading.Event().wait()
    rng, moments = random.Random(args.seed), None
    if args.dataset_name == "custom":
        rows = datasets.CustomDataset(dataset_path=args.dataset_path).data
        lengths = [row["output_tokens"] if args.custom_output_len == -1 else args.custom_output_len for row in rows]
        prompts = [(row.get("messages") or row["prompt"], length) for row, length in zip(rows, lengths, strict=True)][: args.num_prompts]
    elif args.dataset_name == "timed_trace":
        made = datasets.TimedTrace(**vars(args)).sample(num_requests=args.num_prompts, tokenizer=None)
        prompts, moments = [(one.prompt, one.expected_output_len) for one in made], [one.timestamp for one in made]
    elif args.dataset_name == "prefix_repetition":
        sizes = {
            name.removeprefix("prefix_repetition_"): size for name, size in vars(args).items() if name.startswith("prefix_repetition_")
        }
        made = datasets.PrefixRepetitionRandomDataset(args.seed).sample(num_requests=args.num_prompts, **sizes)
        assert all(request.request_id for request in made), "a request without an id is a warm-up"
        prompts = [(request.prompt, request.expected_output_len) for request in made]
    else:
        texts = [" ".join(f"t{rng.randrange(1024)}" for _ in range(args.random_input_len)) for _ in range(args.num_prompts)]
        prompts = [(text, args.random_output_len) for text in texts]
    if args.ready_check_timeout_sec > 0:
        first_request(args, prompts[0])
    for _ in range(args.num_warmups):
        request(args, prompts[0])
    outputs, seconds = run(args, prompts, moments)
    data = result(args, outputs, seconds)
    failed = [output for output in outputs if not output.success]
    if failed:
        print("Failed requests during benchmark run detected (capping to 10):")
        for index, output in enumerate(failed[:10]):
            print(f"Error {index}: {output.error}")
    print("============ Serving Benchmark Result ============")
    for title, key in (("Successful requests:", "completed"), ("Failed requests:", "failed"),
                       ("Benchmark duration (s):", "duration"),
                       ("Total generated tokens:", "total_output_tokens")):  # fmt: skip
        print(f"{title:<40} {data[key]:<10}")
    save(args, data)
    return 0
