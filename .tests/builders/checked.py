"""``servemark check`` on a small configuration, on this machine or with recorded Slurm commands."""

from __future__ import annotations

from pathlib import Path

from builders.recorded_site import BODIES, only
from servemark.cli import main as cli

CONFIG = """\
run: r
models:
  m:
    source: {source}
environments:
  e:
    {environment}
deployments:
  d: {{model: m, environment: e{deployment}}}
workloads:
  w: {{dataset: random, input_tokens: 8, output_tokens: 4, requests: 4, concurrency: 1}}
"""


def run(
    capsys, *, source="builtin:tiny-dense", environment="lock: cpu", site=None, top="", deployment=""
) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and the findings by their state."""
    text = f"{CONFIG.format(source=source, environment=environment, deployment=deployment)}{top}\n"
    if site is not None:
        Path("site.yaml").write_text(f"scheduler: slurm\n{site}\n")
        text += "cluster: ./site.yaml\n"
    Path("my.yaml").write_text(text)
    code = cli.main(["check", "my.yaml"])
    found: dict[str, list[str]] = {"ok": [], "problem": [], "not checked": []}
    for line in capsys.readouterr().out.splitlines():
        for state, texts in found.items():
            if line.startswith(f"{state:<13}"):
                texts.append(line[13:])
    return code, found


def slurm(tmp_path, monkeypatch, **bodies):
    only(tmp_path / "slurm", monkeypatch, BODIES | bodies)
