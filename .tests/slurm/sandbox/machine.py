"""The nodes without Slurm: make, enter, disturb and remove them."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import nodes
from .options import LOGIN, Options, SandboxError
from .processes import Process, environment_of, namespace, node_numbers, numbers, spawn, wait_for
from .requirements import FREEZER, SYSTEM_PATH, find

_MARK = "SERVEMARK_SANDBOX"
_MARK_NODE = "SERVEMARK_SANDBOX_NODE"
_CHECKOUT = Path(__file__).resolve().parents[3]


class Machine:
    """The namespaces of one sandbox and their record (``sandbox.json`` in its folder).

    A process namespace holds the whole sandbox and each node has one inside it. When the outer one's init is killed,
    the kernel ends every process in all of them, and with the last process go mounts, networks and interfaces.
    """

    def __init__(self, folder: Path, options: Options, identity: str, inits: dict[str, Process], before: list[int]):
        self.folder = folder
        self.options = options
        self.identity = identity
        self._inits = inits  # by node; "" is the init of the sandbox
        self._namespaces = before
        self._children: list[subprocess.Popen[Any]] = []

    @classmethod
    def new(cls, folder: Path, options: Options) -> Machine:
        return cls(folder, options, secrets.token_hex(4), {}, [])

    @classmethod
    def on_record(cls, folder: Path) -> Machine | None:
        """Return the machine of the folder's record; None without a record."""
        try:
            record = json.loads((folder / "sandbox.json").read_text())
        except FileNotFoundError:
            return None
        options: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record["options"].items()}
        inits = {name: Process(**process) for name, process in record["inits"].items()}
        return cls(folder, Options(**options), record["identity"], inits, record["namespaces"])

    def _write_record(self) -> None:
        record = {
            "identity": self.identity,
            "options": dataclasses.asdict(self.options),
            "inits": {name: dataclasses.asdict(process) for name, process in self._inits.items()},
            "namespaces": self._namespaces,
        }
        part = self.folder / "sandbox.json.part"
        part.write_text(json.dumps(record, indent=1) + "\n")
        part.replace(self.folder / "sandbox.json")

    @property
    def alive(self) -> bool:
        return "" in self._inits and self._inits[""].alive()

    def init_pid(self, node: str) -> int:
        """Return the machine's process id of a node's init. Raises SandboxError if the node does not run."""
        process = self._inits.get(node)
        if process is None or not process.alive():
            known = ", ".join(name for name in self._inits if name) or "none"
            raise SandboxError(f"Node {node!r} of the sandbox {self.folder} is not up (made: {known}). Start it first.")
        return process.pid

    def build(self) -> None:
        """Make all nodes with their mounts and the network between them."""
        self._write_record()  # from now on the control groups can be found again
        self._start_first_init()
        self._start_node_init(LOGIN)
        self._batch("ip", nodes.login_network())
        for node in self.options.compute_nodes:
            self.boot(node)

    def boot(self, node: str) -> None:
        """Make a compute node and connect it to the network. Raises SandboxError if it runs already."""
        if node in self._inits and self._inits[node].alive():
            raise SandboxError(f"{node} is up already; kill it first.")
        self._start_node_init(node)
        self._batch("ip", nodes.cables(node, self.init_pid(node)))
        self._batch("ip", nodes.node_network(node, self.options), node)

    def power_off(self, node: str) -> None:
        """End every process of a compute node at once and wait until its network interfaces are gone."""
        self._thaw(node)
        self.init_pid(node)
        self._inits[node].kill()
        interfaces = [find("nsenter"), f"--net=/proc/{self.init_pid(LOGIN)}/ns/net", "--", find("ip"), "-o", "link"]

        def gone() -> bool:
            self._collect()
            listed = subprocess.run(interfaces, capture_output=True, text=True).stdout
            return not self._inits[node].alive() and f"-{node}@" not in listed

        wait_for(gone, 20, f"The end of {node}")

    def _start_first_init(self) -> None:
        with (self.folder / "log/init.log").open("ab") as log:
            wrapper = subprocess.Popen(
                nodes.init_argv(None, self.options.release),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": SYSTEM_PATH, _MARK: self.identity},
                start_new_session=True,
            )
        self._children.append(wrapper)
        children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
        pid = wait_for(lambda: children.read_text().split(), 10, "The sandbox's first process")[0]
        self._record_init("", Process.of(int(pid)))
        assert wrapper.stdin is not None
        wrapper.stdin.write(b"go\n")
        wrapper.stdin.close()
        # Nodes copy the mounts of this process, which a shell makes before it becomes the init.
        wait_for(lambda: _runs_init(int(pid)), 20, f"The root of the sandbox ({self.folder}/log/init.log)")

    def _start_node_init(self, node: str) -> None:
        outer = self.init_pid("")
        with (self.folder / "log/init.log").open("ab") as log:
            starter = spawn(
                [find("nsenter"), f"--target={outer}", "--mount", "--", *nodes.init_argv(node)],
                outer,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": SYSTEM_PATH, _MARK: self.identity, _MARK_NODE: node},
            )
        starter.communicate(b"go\n")
        pid = wait_for(lambda: self._find_init(node), 10, f"The first process of {node} ({self.folder}/log/init.log)")
        self._record_init(node, Process.of(pid))
        freezer = None
        if self.options.proctrack == "cgroup":
            freezer = nodes.cgroup(self.identity, node)
            freezer.mkdir(parents=True, exist_ok=True)
        wanted = (*self.options.shared_paths, str(_CHECKOUT), sys.prefix, sys.base_prefix)
        script = nodes.mount_script(self.folder, node, freezer, nodes.shared(self.folder, wanted))
        done = self.popen([find("sh"), "-c", script], node, cwd="/", capture=True, env={})
        output = done.communicate()
        if done.returncode != 0:
            raise SandboxError(f"The mounts of {node} failed (exit code {done.returncode}): {output[1].strip()}")

    def _find_init(self, node: str) -> int | None:
        for pid in numbers():
            own = node_numbers(pid)
            if len(own) > 2 and own[-1] == 1:
                marks = environment_of(pid)
                if marks.get(_MARK) == self.identity and marks.get(_MARK_NODE) == node:
                    return pid
        return None

    def _record_init(self, node: str, process: Process) -> None:
        self._inits[node] = process
        kinds = ("pid", "mnt", "net", "uts") if node else ("pid", "mnt")
        self._namespaces += [inode for kind in kinds if (inode := namespace(process.pid, kind)) is not None]
        self._write_record()

    def _batch(self, program: str, text: str, node: str = LOGIN) -> None:
        """Run ``ip`` or ``nft`` with a list of commands in a node's network (with the machine's process ids)."""
        flags = ["-batch", "-"] if program == "ip" else ["-f", "-"]
        argv = [find("nsenter"), f"--net=/proc/{self.init_pid(node)}/ns/net", "--", find(program), *flags]
        done = subprocess.run(argv, input=text, text=True, capture_output=True)
        if done.returncode != 0:
            raise SandboxError(f"{program} failed on {node}: {done.stderr.strip()}\nIt was given:\n{text}")

    def cut(self, node: str, other: str) -> None:
        for name in (node, other):
            if name not in self.options.compute_nodes:
                raise SandboxError(f"{name!r} is no compute node; there are {', '.join(self.options.compute_nodes)}.")
        self._batch("nft", nodes.cut_rules(node, other))

    def restore_network(self) -> None:
        # Added first, so that deleting it is no error if nothing was cut.
        self._batch("nft", "add table bridge cut\ndelete table bridge cut\n")

    def environment(self, node: str, user: str | None) -> dict[str, str]:
        """Return a command's environment on a node: the caller's without its Slurm job, as after a login."""
        keep = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "SBATCH_", "SALLOC_", "SRUN_"))}
        name = user or "root"
        entry = pwd.getpwnam(name)
        home = entry.pw_dir if os.path.isdir(entry.pw_dir) else "/tmp"
        path = ":".join(dict.fromkeys(f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}".strip(":").split(":")))
        return keep | {
            "PATH": path,
            "SLURM_CONF": "/run/slurm/etc/slurm.conf",
            "HOSTNAME": node,
            "HOME": home,
            "USER": name,
            "LOGNAME": name,
            "TMPDIR": "/tmp",
            _MARK: self.identity,
        }

    def popen(
        self,
        argv: Sequence[str],
        node: str = LOGIN,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        capture: bool = False,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start subprocess.Popen on a node; ``env`` is added to ``environment(node)``, ``cwd`` is a folder of the node."""
        init = self.init_pid(node)
        if capture:
            options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        child = spawn(
            nodes.enter_argv(init, argv, user, str(cwd or "/tmp")),
            init,
            env=self.environment(node, user) | dict(env or {}),
            cwd="/",
            **options,
        )
        self._collect()
        self._children.append(child)
        return child

    def destroy(self) -> None:
        """End every process of the sandbox and remove its control groups. The record stays."""
        outer = self._inits.get("")
        if outer is not None:
            outer.kill()

            def gone() -> bool:
                self._thaw()
                self._collect()
                return not outer.alive()

            wait_for(gone, 20, f"The end of the sandbox in {self.folder} (its first process is {outer.pid})")
        for child in self._children:
            child.wait(5)
        self._children = []
        self._remove_cgroups()

    def _collect(self) -> None:
        # A dead child keeps its process namespace open until it is reaped.
        self._children = [child for child in self._children if child.poll() is None]

    def _thaw(self, node: str | None = None) -> None:
        # SIGKILL does not end frozen processes.
        for state in nodes.cgroup(self.identity, node).glob("**/freezer.state"):
            try:
                if state.read_text().strip() != "THAWED":
                    state.write_text("THAWED")
            except OSError:
                continue  # Slurm has removed it

    def _remove_cgroups(self) -> None:
        top = nodes.cgroup(self.identity)

        def removed() -> bool:
            for folder in sorted((p for p in top.glob("**/*") if p.is_dir()), reverse=True):
                _rmdir(folder)
            _rmdir(top)
            return not top.exists()

        wait_for(removed, 10, f"Removing the control groups {top}")

    def leftovers(self) -> list[str]:
        """Return the sandbox's remaining processes, namespaces, mounts and control groups, one line each."""
        found = []
        for pid in numbers():
            mark = environment_of(pid).get(_MARK)
            # Linux reuses the numbers of namespaces, so a process of another sandbox may be in one. Mount namespaces do not count:
            # container runtimes make them too, and a process of the sandbox is also in one of the others.
            kinds = ("pid", "net", "uts")
            elsewhere = mark not in (None, self.identity)
            if mark == self.identity and pid != os.getpid():
                found.append(f"process {pid}")
            elif not elsewhere and any(namespace(pid, kind) in self._namespaces for kind in kinds):
                found.append(f"process {pid} in a namespace of the sandbox")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line.split()[4]}" for line in mounts if f" {self.folder}/" in line]
        found += [f"control group {path}" for path in FREEZER.parent.glob(f"*/{nodes.cgroup(self.identity).name}")]
        return found

    def forget(self) -> None:
        (self.folder / "sandbox.json").unlink(missing_ok=True)


def _runs_init(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(sys.executable.encode() + b"\0")


def _rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # not empty yet, or gone
