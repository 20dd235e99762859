"""Stand-ins of Slurm's commands: a job on nodes that all are this machine. They print recorded output of Slurm 22.05.8."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from recorded_slurm import FIXTURES

JOB = (FIXTURES / "scontrol-22.05.8-job-whole-nodes.txt").read_text()
NODES = (FIXTURES / "scontrol-22.05.8-nodes.txt").read_text()

_SCONTROL = r"""#!/bin/sh
# Stand-in of scontrol.
cd {folder}
echo "$@" >> scontrol.calls
case "$1 $2" in
"show job") cat job ;;
"show hostnames") case "$3" in *[*) tr , '\n' < nodes ;; *) echo "$3" | tr , '\n' ;; esac ;;
"show node") cat described ;;
*) echo "stand-in of scontrol: $*" >&2; exit 2 ;;
esac
"""
# Like srun: the same standard input for every task, SLURMD_NODENAME in each, the highest exit code.
_SRUN = r"""#!/bin/sh
# Stand-in of srun: runs the command on this machine, once for every node that is named.
echo "$@" >> {folder}/srun.calls
while [ "${{1#--}}" != "$1" ]; do
  case $1 in --nodelist=*) nodes=${{1#*=}} ;; esac
  shift
done
exec 3<&0
export SLURM_STEP_ID=7 SLURM_PROCID=0
tasks=
for node in $(echo "$nodes" | tr , ' '); do
  if grep -qsx "$node" {folder}/lost; then continue; fi
  unset CUDA_VISIBLE_DEVICES
  if [ -e {folder}/devices.$node ]; then export CUDA_VISIBLE_DEVICES="$(cat {folder}/devices.$node)"; fi
  SLURMD_NODENAME=$node "$@" <&3 3<&- & tasks="$tasks $!"
done
worst=0
for task in $tasks; do wait "$task"; code=$?; [ $code -gt $worst ] && worst=$code; done
exit $worst
"""
_SQUEUE = "#!/bin/sh\n# Stand-in of squeue.\ncat {folder}/alive\n"


@dataclass(frozen=True)
class StandinSlurm:
    """The job of this process, which runs on node1.

    Files in ``folder``: ``job`` and ``described`` hold scontrol's output, ``alive`` squeue's; ``lost`` names nodes on which srun starts
    nothing; ``devices.NODE`` is CUDA_VISIBLE_DEVICES on a node.
    """

    folder: Path
    job_id: str = "1"

    @classmethod
    def install(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSlurm:
        """Write the commands and put them first on PATH."""
        (folder / "bin").mkdir(parents=True)
        for name, text in (("scontrol", _SCONTROL), ("srun", _SRUN), ("squeue", _SQUEUE)):
            script = folder / "bin" / name
            script.write_text(text.format(folder=folder))
            script.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
        made = cls(folder)
        monkeypatch.setenv("SLURM_JOB_ID", made.job_id)
        monkeypatch.setenv("SLURMD_NODENAME", "node1")
        made.nodes("node1", "node2")
        made.described(re.sub(r"NodeAddr=\S+", "NodeAddr=127.0.0.1", NODES))
        made.alive("1")
        return made

    def nodes(self, *names: str) -> None:
        """Set the job's nodes, with one CPU of each, for an hour from now."""
        (self.folder / "nodes").write_text(",".join(names) + "\n")
        self.job(JOB.replace("NodeList=node[1-2]\n", f"NodeList={','.join(names)}\n").replace("=0-15", "=0"))
        self.ends_at(time.time() + 3600)

    def heterogeneous(self, *components: str) -> None:
        """Set the nodes of each component, with one CPU of each, for an hour from now."""
        self.nodes(*",".join(components).split(","))
        whole = (self.folder / "job").read_text()
        names = re.search(r"\bNodeList=(\S+)", whole)[1]
        parts = [
            whole.replace("JobId=1 ", f"JobId={1 + offset} HetJobId=1 HetJobOffset={offset} ", 1).replace(names, asked)
            for offset, asked in enumerate(components)
        ]
        self.job("\n".join(parts))

    def ends_at(self, moment: float) -> None:
        """Set the job's end, seconds since 1970; Slurm prints local time."""
        text = (self.folder / "job").read_text()
        self.job(re.sub(r"EndTime=\S+", f"EndTime={datetime.fromtimestamp(moment):%Y-%m-%dT%H:%M:%S}", text))

    def job(self, text: str) -> None:
        (self.folder / "job").write_text(text)

    def described(self, text: str) -> None:
        (self.folder / "described").write_text(text)

    def alive(self, *jobs: str) -> None:
        (self.folder / "alive").write_text("".join(f"{job}\n" for job in jobs))

    def lose(self, *nodes: str) -> None:
        (self.folder / "lost").write_text("".join(f"{node}\n" for node in nodes))

    def devices(self, **visible: str) -> None:
        """Set the job's devices on each node, in Slurm's format; other nodes have none."""
        for node, names in visible.items():
            (self.folder / f"devices.{node}").write_text(names)

    def calls(self, tool: str) -> list[str]:
        """Return the arguments of every call so far."""
        path = self.folder / f"{tool}.calls"
        return path.read_text().splitlines() if path.exists() else []
