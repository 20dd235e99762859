"""The cost of a dry run with many deployments, as counts of calls and files, which do not depend on the machine's load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import yaml

from integration.harness import Checkout

POINTS = 4
# Runs Snakemake's command line under a profiler and prints its number of calls, in total and in the workflow's code.
COUNTED = """
import cProfile, json, os, sys
from snakemake.cli import main
profiler = cProfile.Profile()
profiler.enable()
try:
    main(sys.argv[1:])
except SystemExit as end:
    rc = end.code
profiler.disable()
own = os.path.join(os.getcwd(), "workflow", "")
# Not by pstats, which holds one entry for two generators of one line.
calls = [(getattr(entry.code, "co_filename", ""), entry.callcount) for entry in profiler.getstats()]
print(json.dumps({"rc": rc, "all": sum(n for _, n in calls), "own": sum(n for file, n in calls if file.startswith(own))}))
"""


def configure(checkout: Checkout, deployments: int) -> None:
    checkout.config["workloads"]["chat"]["concurrency"] = list(range(1, POINTS + 1))
    one = next(iter(checkout.config["deployments"].values()))
    checkout.config["deployments"] = {f"d{n}": one | {"options": {"max-model-len": 256 + n}} for n in range(deployments)}


def calls(checkout: Checkout, deployments: int) -> dict[str, int]:
    """Return the function calls of a dry run with this number of deployments: ``all``, and ``own`` in the workflow's code."""
    configure(checkout, deployments)
    (checkout.path / "my.yaml").write_text(yaml.safe_dump(checkout.config))
    arguments = ["--profile", "profiles/local", "--configfile", "my.yaml", "-n", "--quiet", "rules", "host"]
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments], cwd=checkout.path, capture_output=True, text=True, timeout=300,
        env=os.environ | {"SERVEMARK_RUNTIME_DIR": str(checkout.runtime), "PYTHONPATH": str(checkout.path / "workflow" / "lib")},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rc"] in (0, None), done.stderr[-3000:]
    return found


def test_calls_grow_linearly_with_deployments(checkout: Checkout):
    few, more, most = (calls(checkout, deployments) for deployments in (10, 20, 40))
    for whose in ("all", "own"):
        first, second = more[whose] - few[whose], most[whose] - more[whose]
        assert 0 < second <= 2.15 * first, (whose, few, more, most)


def test_each_load_point_adds_seven_input_files(checkout: Checkout):
    """Each file that Snakemake tracks costs time and memory, 20,000 times over with 20,000 load points."""
    configure(checkout, 2)
    fewer = _inputs(checkout)
    checkout.config["workloads"]["chat"]["concurrency"] = list(range(1, POINTS + 2))
    # Live record, previous point, plan and configuration; its record for the stop; record and raw result for the run.
    assert (_inputs(checkout) - fewer) / 2 == 7


def _inputs(checkout: Checkout) -> int:
    done = checkout.run("-n", "--quiet", "host")
    assert done.rc == 0, done.text
    lines = re.findall(r"^ +input: (.+)$", done.text, re.MULTILINE)
    return sum(len(line.split(", ")) for line in lines)
