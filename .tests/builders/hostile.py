"""Hostile configurations, and ``servemark check`` on each in its own process with little time and memory.

python hostile.py FOLDER FILE...    checks the files in FOLDER, each in its own process; prints {file: [exit code, output]} as JSON
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from builders.config_text import BASE

CPU_S = 4
MEMORY = 2 << 30

LOADS = "    concurrency: [1, 4]\n"
RANKS = "      tensor_parallel: 1\n"
OPTION = "      max-model-len: 512\n"
SOURCE = "    source: builtin:tiny-dense\n"
LOCK = "    lock: cpu\n"


def _in(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


def _aliases(item: Callable[[int], str]) -> str:
    return "a0: &a0 [x, x]\n" + "".join(f"a{level}: &a{level} {item(level - 1)}\n" for level in range(1, 60))


_SWEPT = ("max-num-seqs", "max-logprobs", "max-loras")
GRID = "".join(f"    options.{name}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" for name in _SWEPT)
SWEEP = f"sweeps:\n- over: deployments.plain\n  grid:\n{GRID}"
CODE = '__import__("os").system("touch hacked")'

# Name -> (content, a part of the message). The file is NAME.yaml.
FILES: dict[str, tuple[str | bytes, str]] = {
    # neither text nor YAML
    "latin": (b"run: demo\ncache: \xe9\n", "latin.yaml:2: "),
    "utf16": (BASE.encode("utf-16"), "utf16.yaml:1: "),
    "nul-byte": (b"run: a\0b\n", "nul-byte.yaml: "),
    "tab": ("run: a\n\tmodels: b\n", "tab.yaml:2:1: "),
    "month": ("run: demo\ncache: 2026-13-45\n", "month.yaml:2:8: "),
    "digits": (_in(LOADS, f"    concurrency: 1{'0' * 5000}\n"), "digits.yaml:24:"),
    "object": (f"run: !!python/object/apply:eval ['{CODE}']\n", "object.yaml:1:"),
    "surrogate": (_in("run: demo", 'run: "\\ud800"'), "surrogate.yaml:1:"),
    "two-documents": (BASE + "---\nrun: b\n", "two-documents.yaml:25:"),
    "long-file": (BASE + "#" * 2**20, "long-file.yaml "),
    # nesting and aliases
    "deep-list": (f"run: {'[' * 5000}{']' * 5000}\n", "deep-list.yaml:1:"),
    "deep-unclosed": ("[" * 100_000, "deep-unclosed.yaml:1:"),
    "deep-mapping": ("".join(f"{' ' * level}a:\n" for level in range(500)), "deep-mapping.yaml:51:"),
    "deep-aliases": (_aliases(lambda one: f"[*a{one}]"), "deep-aliases.yaml:"),
    "bomb-of-lists": (_aliases(lambda one: f"[{', '.join([f'*a{one}'] * 9)}]"), "bomb-of-lists.yaml:"),
    "bomb-of-mappings": (
        _aliases(lambda one: f"{{{', '.join(f'k{key}: *a{one}' for key in range(9))}}}"),
        "bomb-of-mappings.yaml:",
    ),
    "bomb-of-merges": (
        "a0: &a0 {x: 1}\n"
        + "".join(
            f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 12)
        ),
        "bomb-of-merges.yaml:",
    ),
    "own-list": ("run: demo\ncache: &a [*a]\n", "own-list.yaml:2:"),
    "own-mapping": (BASE + "verdict: &a {x: *a}\n", "own-mapping.yaml:25:"),
    "many-values": (BASE + "".join(f"k{key}: 1\n" for key in range(60_000)), "many-values.yaml:"),
    # content of the top level
    "empty": ("", "empty.yaml:1: "),
    "comment": ("# nothing\n", "comment.yaml:1: "),
    "list": ("- a\n", "list.yaml:1: "),
    "text": ("text\n", "text.yaml:1: "),
    # numbers
    "nan": (BASE + "verdict:\n  min_duration_s: .nan\n", "nan.yaml:26: verdict.min_duration_s: "),
    "nan-in-a-list": (_in(LOADS, "    request_rate: [1.0, .nan]\n"), "nan-in-a-list.yaml:24: workloads.chat.request_rate[1]: "),
    "nan-variable": (_in("OMP_NUM_THREADS: 2", "OMP_NUM_THREADS: .nan"), "nan-variable.yaml:17: "),
    "nan-option": (_in(OPTION, "      max-model-len: .nan\n"), "nan-option.yaml:15: "),
    "infinite": (BASE + "timeouts:\n  start: .inf\n", "infinite.yaml:26: timeouts.start: "),
    "for-ever": (BASE + "timeouts:\n  start: 1.0e+308\n", "for-ever.yaml:26: timeouts.start: "),
    "1e23": (_in(LOADS, "    concurrency: 1e23\n"), "1e23.yaml:24: workloads.chat.concurrency: "),
    "1e23-float": (_in(LOADS, "    concurrency: 1.0e+23\n"), "1e23-float.yaml:24: workloads.chat.concurrency: "),
    "1e23-swept": (
        BASE + "sweeps:\n- over: workloads.chat\n  grid:\n    concurrency: [1e23, 2]\n",
        "1e23-swept.yaml:28: sweeps[0].grid.concurrency[0]: ",
    ),
    "10-to-400": (_in(LOADS, f"    concurrency: 1{'0' * 400}\n"), "10-to-400.yaml:24: workloads.chat.concurrency: "),
    "hexadecimal": (_in(LOADS, f"    concurrency: 0x{'f' * 5000}\n"), "hexadecimal.yaml:24: workloads.chat.concurrency: "),
    "seed": (BASE + f"    seed: 1{'0' * 400}\n", "seed.yaml:25: workloads.chat.seed: "),
    "true": (_in(LOADS, "    concurrency: true\n"), "true.yaml:24: workloads.chat.concurrency: "),
    "clients": (_in(LOADS, "    concurrency: 1000000000\n    clients: 1000000\n"), "clients.yaml:25: workloads.chat.clients: "),
    "ranks": (_in(RANKS, f"      tensor_parallel: 1{'0' * 18}\n"), "ranks.yaml:13: deployments.plain.topology.tensor_parallel: "),
    "rank-product": (
        _in(RANKS, "      tensor_parallel: 9973\n      data_parallel: 9973\n      nodes: 7\n"),
        "rank-product.yaml:12: deployments.plain.topology: ",
    ),
    # texts and keys
    "nul": (_in("run: demo", 'run: "a\\0b"'), "nul.yaml:1: run: "),
    "nul-path": (BASE + 'cache: "a\\0b"\n', "nul-path.yaml:25: cache: "),
    "nul-cluster": (BASE + 'cluster: "a\\0b.yaml"\n', "nul-cluster.yaml:25: cluster: "),
    "escape": (_in(OPTION, '      max-model-len: "\\e[31m"\n'), "escape.yaml:15: deployments.plain.options.max-model-len: "),
    "escape-key": (BASE + '"a\\e[31m": 1\n', "escape-key.yaml:25: "),
    "binary": (_in("run: demo", "run: !!binary ZGVtbw=="), "binary.yaml:1: run: "),
    "long-run": (_in("run: demo", f"run: {'a' * 10**6}"), "long-run.yaml:1: run: "),
    "long-key": (BASE + f"? {'a' * 10**6}\n: 1\n", "long-key.yaml:25: "),
    "long-path": (BASE + f"cache: {'a' * 5000}\n", "long-path.yaml:25: cache: "),
    "long-source": (_in(SOURCE, f"    source: a/{'a' * 300}\n"), "long-source.yaml:4: models.tiny.source: "),
    "long-cluster": (BASE + f"cluster: {'a' * 300}\n", "long-cluster.yaml:25: cluster: "),
    "number-key": (BASE + "1: 2\n", "number-key.yaml:25: [1]: "),
    "date-key": (BASE + "2020-01-01: 2\n", "date-key.yaml:"),
    "null-key": (BASE + "~: 2\n", "null-key.yaml:"),
    "list-key": (BASE + "? [a]\n: 2\n", "list-key.yaml:25:"),
    "twice": (BASE + "run: b\n", "twice.yaml:25: run: "),
    "crlf": (_in("requests: 32", "requests: 0").replace("\n", "\r\n"), "crlf.yaml:23: workloads.chat.requests: "),
    "byte-order-mark": (b"\xef\xbb\xbf" + _in("requests: 32", "requests: 0").encode(), "byte-order-mark.yaml:23: "),
    # home folders and missing folders
    "home-of-a-source": (_in(SOURCE, "    source: ~nosuchuser/x\n"), "home-of-a-source.yaml:4: models.tiny.source: "),
    "home-of-a-prefix": (_in(LOCK, "    prefix: ~nosuchuser/x\n"), "home-of-a-prefix.yaml:7: environments.cpu.prefix: "),
    "home-of-a-cache": (BASE + "cache: ~nosuchuser/x\n", "home-of-a-cache.yaml:25: cache: "),
    "home-of-a-cluster": (BASE + "cluster: ~nosuchuser/x\n", "home-of-a-cluster.yaml:25: cluster: "),
    "no-model": (_in(SOURCE, "    source: ./nowhere\n"), "no-model.yaml:4: models.tiny.source: "),
    "no-prefix": (_in(LOCK, "    prefix: ./nowhere\n"), "no-prefix.yaml:7: environments.cpu.prefix: "),
    # too many points
    "repetitions": (BASE + "    repetitions: 1000000000\n", "repetitions.yaml:25: workloads.chat.repetitions: "),
    "loads": (_in(LOADS, f"    concurrency: [{', '.join(map(str, range(1, 20_002)))}]\n"), "loads.yaml:24: workloads.chat.concurrency: "),
    "sweeps": (
        BASE + SWEEP + f"- over: workloads.chat\n  grid:\n    input_tokens: [{', '.join(map(str, range(1, 1001)))}]\n",
        "20,000",
    ),
    "one-sweep": (BASE + SWEEP + "    options.stream-interval: [1, 2]\n", "one-sweep.yaml:27: sweeps[0].grid: "),
    # hostile cluster files
    "cluster-bomb": (BASE + "cluster: ./bomb-of-lists.yaml\n", "bomb-of-lists.yaml:"),
    "cluster-deep": (BASE + "cluster: ./deep-list.yaml\n", "deep-list.yaml:1:"),
    "cluster-latin": (BASE + "cluster: ./latin.yaml\n", "latin.yaml:2: "),
    "cluster-folder": (BASE + "cluster: ./folder.yaml\n", "folder.yaml "),
    "cluster-device": (BASE + "cluster: /dev/zero\n", "/dev/zero "),
    "cluster-pipe": (BASE + "cluster: ./pipe.yaml\n", "pipe.yaml "),
    "cluster-loop": (BASE + "cluster: ./loop.yaml\n", "cluster-loop.yaml:25: cluster: "),
    "cluster-list": (BASE + "cluster: ./list.yaml\n", "cluster-list.yaml:25: cluster: "),
    "cluster-of-nan": (BASE + "cluster: ./site-nan.yaml\n", "site-nan.yaml:2: gpus_per_node: "),
    "cluster-of-10-to-400": (BASE + "cluster: ./site-huge.yaml\n", "site-huge.yaml:2: gpus_per_node: "),
}  # fmt: skip

# Other paths, made by ``write``, and a part of their message.
PLACES = {
    "folder.yaml": "folder.yaml ",
    "pipe.yaml": "pipe.yaml ",
    "loop.yaml": "loop.yaml ",
    "/dev/zero": "/dev/zero ",
    "missing.yaml": "missing.yaml ",
}


def write(folder: Path) -> None:
    """Write every file of the tables."""
    for name, (content, _) in FILES.items():
        (folder / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "site-nan.yaml").write_text("scheduler: slurm\ngpus_per_node: .nan\n")
    (folder / "site-huge.yaml").write_text(f"scheduler: slurm\ngpus_per_node: 1{'0' * 400}\n")


def _check(file: str, output: Path) -> int:
    """Run ``servemark check`` in a fork with little memory and CPU time; return the exit code, negative for a signal."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        signal.alarm(60)  # against a wait without CPU time, such as for a pipe
        number = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(number, 1)
        os.dup2(number, 2)
        code = 1
        try:
            code = cli.main(["check", file])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    from servemark.cli import main as cli

    os.chdir(sys.argv[1])
    out = Path("output.txt")
    print(json.dumps({file: [_check(file, out), out.read_text(errors="replace")] for file in sys.argv[2:]}))
