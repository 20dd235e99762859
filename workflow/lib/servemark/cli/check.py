"""``servemark check``: validate a configuration, then check that this machine and Slurm can run it. Starts nothing."""

import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from servemark.cli import check_jobs
from servemark.cli.finding import ELSEWHERE, Finding, Loc
from servemark.config import option_problems, paths, positions
from servemark.config.cluster import Site
from servemark.config.expand import expand, points
from servemark.config.load import load
from servemark.config.model import Config
from servemark.config.restarts import starts
from servemark.config.searches import ends, searches
from servemark.containers.runtimes import REGISTRY
from servemark.environments import build, lockfiles, own_lock
from servemark.environments.lockfiles import Lock
from servemark.errors import ConfigError, ServemarkError
from servemark.files import storage
from servemark.machine import hardware
from servemark.planning import exposure
from servemark.planning.legality import of_builtin, too_long
from servemark.records import StagedPrompts
from servemark.records.restarts import configured
from servemark.run import topologies
from servemark.weights import hub_source, hub_token, staging
from servemark.weights.hub_source import HubSource


def check(path: Path, cluster: str | None = None) -> None:
    """Validate a configuration; print a summary of its deployments and one line for each check of this machine.

    Raises:
        ConfigError: the configuration is wrong, or this machine or Slurm cannot run it.
    """
    config = expand(load(path, cluster))
    config, choices = topologies.resolved(config, Path("results") / config.run)
    where = "on the cluster" if config.cluster else "on this machine"
    print(f"{path}: valid. Run {config.run}, {where}, results in results/{config.run}/")
    counts = Counter(configured(start) for start in starts(config) for _ in points(config, start))
    for name, deployment in config.deployments.items():
        topology = deployment.topology
        several = ((topology.replicas, "replicas"), (topology.all_nodes, "nodes"), (config.restarts + 1, "starts"))
        more = "".join(f", {count} {what}" for count, what in several if count > 1)
        print(
            f"  {name}: model {deployment.model}, environment {deployment.environment}, executor {topology.executor}, "
            f"{topology.record().world_size} rank(s), {counts[name]} load point{'s' * (counts[name] != 1)}"
            f"{_trials(config, name)}{more}"
        )
        if choice := choices.get(name):
            print(f"    topology: auto: {choice.why}")
        exclusive = config.cluster is None or config.cluster.exclusive
        for note in exposure.notes(topology.record(), exclusive=exclusive):
            print(f"    warning: {note} See {exposure.PAGE}.")
    source = positions.read(path)
    problems = 0
    for finding in findings(config):
        place = positions.find([source], source.data, finding.loc) if finding.loc and finding.state == "problem" else None
        print(f"{finding.state:<13}{f'{path}:{place[1]}: ' if place else ''}{' '.join(finding.text.split())}", flush=True)
        problems += finding.state == "problem"
    if problems:
        raise ConfigError(f"{problems} problem(s) found; see the lines that begin with `problem`. Nothing was started.",
                          do="Correct them and run the check again; docs/reference/configuration.md explains every key.")  # fmt: skip


def _trials(config: Config, name: str) -> str:
    """Return the most trials of a deployment's searches, as the end of a sentence."""
    found = searches(config, name)
    what = f"{len(found)} {'search' if len(found) == 1 else 'searches'}"
    return f" and {what} with at most {sum(one.trials for one in found)} trials" if found else ""


def findings(config: Config) -> Iterator[Finding]:
    """Check an expanded configuration on this machine: folders, space for environments, network, and whether Slurm accepts the jobs."""
    here = config.cluster is None or shutil.which("sbatch") is not None
    yield from _refused(config)
    yield from _folders(config, here=here)
    yield from _room(config, here=here)
    yield from _later(config)
    if config.cluster:
        yield from check_jobs.interface(config.cluster)
        yield from check_jobs.jobs(config, config.cluster, here=here)


def _refused(config: Config) -> Iterator[Finding]:
    """Yield requests above ``max-model-len`` and bad topologies of built-in models. Only the plan has the others."""
    for start in starts(config):
        name = configured(start)
        if start == name:
            deployment, place = config.deployments[name], ("deployments", name, "topology")
            faults = of_builtin(config.models[deployment.model].source, deployment.topology.record(), deployment.options)
            yield from (Finding("problem", f"{'.'.join(place)}: {text}", place) for text in faults)
        loads = (*points(config, start), *ends(config, start))
        known = {point.workload: point for point in loads if not isinstance(point.prompts, StagedPrompts)}
        # A text such as `auto` or `8k` is left to the plan too.
        most = config.deployments[name].options.get("max-model-len")
        if start == name and isinstance(most, int):
            loc = ("deployments", name, "options", "max-model-len")
            yield from (Finding("problem", f"deployments.{name}: {text}", loc) for text in too_long(known, most))


def _folders(config: Config, *, here: bool) -> Iterator[Finding]:
    """Check the models and the environments that exist already."""
    faults: dict[Loc, str] = {}
    for problem in paths.problems(config):
        faults[problem.loc] = "; ".join(filter(None, (faults.get(problem.loc), problem.text)))
    for name in sorted({deployment.model for deployment in config.deployments.values()}):
        source, loc = config.models[name].source, ("models", name, "source")
        if source.startswith("builtin:"):
            yield Finding("ok", f"models.{name}.source: {source}; servemark makes it", loc)
        elif of_hub := hub_source.parse(source):
            yield _of_hub(config, name, of_hub, here=here)
        else:
            yield _folder(loc, Path(source).absolute(), faults.get(loc), here=here)
    if config.hub_cache:
        yield _folder(("hub_cache",), config.hub_cache.absolute(), faults.get(("hub_cache",)), here=here)
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        for key in ("prefix", "wheels"):
            if folder := getattr(config.environments[name], key):
                loc = ("environments", name, key)
                yield _folder(loc, folder.absolute(), faults.get(loc), here=here)
    for name, container in paths.containers(config):
        loc = ("environments", name, "container")
        wrong = [(place, text) for place, text in faults.items() if place[:3] == loc]
        for place, text in wrong:
            key = ".".join(map(str, place))
            yield Finding("problem", f"{key}: {text}", place) if here else Finding("not checked", f"{key}: {text}. {ELSEWHERE}", place)
        if not wrong:
            registry, image = container.image.startswith(REGISTRY), (*loc, "image")
            note = "; servemark looks up its digest and fetches it in the run" if registry else ""
            seen = registry or os.path.exists(container.image)
            yield Finding("ok", f"{'.'.join(image)}: {container.image}{note}", image) if seen else _unseen(image, container.image, None)
    for loc in paths.datasets(config):
        if loc[-1] == "hf":
            yield Finding("not checked", f"{'.'.join(map(str, loc))}: the hub is not contacted before the run", loc)
        elif loc not in faults:
            yield Finding("ok", f"{'.'.join(map(str, loc))}: every row can be used", loc)
    for loc, text in faults.items() if here else ():
        if loc[0] in ("deployments", "workloads"):
            yield Finding("problem", f"{'.'.join(loc)}: {text}", loc)


def _later(config: Config) -> Iterator[Finding]:
    """Name what only the run can check, because it needs the software of an environment."""
    for name, deployment in config.deployments.items():
        if deployment.options and not option_problems.known(config.environments[deployment.environment]):
            text = f"the run asks the vLLM of environment {deployment.environment} for its options, before a server starts"
            yield Finding("not checked", f"deployments.{name}.options: {text}")
        if deployment.checks:
            yield Finding("not checked", f"deployments.{name}.checks: the run asks lm-eval for these tasks, before a server starts")


def _of_hub(config: Config, name: str, source: HubSource, *, here: bool) -> Finding:
    """Look for a model of the hub on this machine, without a request to the hub."""
    loc, cluster = ("models", name, "source"), config.cluster
    cache, dummy = (cluster and cluster.cache) or config.cache, config.models[name].load_format == "dummy"
    key, incomplete = f"{'.'.join(loc)}: {config.models[name].source}", ""
    for folder, fault in staging.cached(source, cache, config.hub_cache, dummy=dummy):
        if not fault:
            asks = not staging.pinned(source, cache) and not hub_token.offline()
            note = f"; the run asks the hub whether {source.revision} has another commit" if asks else ""
            return Finding("ok", f"{key}; found in {folder} (commit {folder.name.removesuffix(staging.SHAPE)}){note}", loc)
        incomplete += f" {folder} is not complete: {fault}"
    missing = f"{key}; in no cache: looked in {staging.folders(source, cache, config.hub_cache)}.{incomplete}"
    if cluster and (cluster.stage_on == "job" or not here):
        return Finding("not checked", f"{missing} {'Jobs look for it on the nodes (stage_on: job).' if here else ELSEWHERE}", loc)
    if hub_token.offline():
        return Finding("problem", f"{missing} HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so the run cannot fetch it.", loc)
    return Finding("not checked", f"{missing} The run will fetch it.", loc)


def _folder(loc: Loc, folder: Path, fault: str | None, *, here: bool) -> Finding:
    key = ".".join(loc)
    exists = os.path.isdir(folder)
    if fault and (here or exists):
        return Finding("problem", f"{key}: {fault}", loc)
    if exists:
        return Finding("ok", f"{key}: {folder}", loc)
    return _unseen(loc, folder, fault)


def _unseen(loc: Loc, path: Path | str, fault: str | None) -> Finding:
    """Return the finding of a path that is missing here. Without a fault, the jobs read it."""
    why = (
        ELSEWHERE
        if fault
        else f"Jobs read it on the nodes ({'build_on' if loc[0] == 'environments' else 'stage_on'}: job); check it there."
    )
    return Finding("not checked", f"{'.'.join(loc)}: {path} is not on this machine. {why}", loc)


def _room(config: Config, *, here: bool) -> Iterator[Finding]:
    """Check that the cache has room for the environments that are not built yet."""
    cache = ((config.cluster and config.cluster.cache) or config.cache).absolute()
    if not here and not cache.is_dir():
        yield Finding("not checked", f"cache: {cache} is not on this machine. {ELSEWHERE}")
        return
    missing: dict[str, float] = {}
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        asked, loc = config.environments[name].lock, ("environments", name, "lock")
        if asked is None:
            continue
        try:
            lock = _lock(f"environments.{name}.lock", asked, config.cluster)
            built = (build.prefix_of(lock, cache) / build.MARKER).exists()
        except ServemarkError as error:
            # Only the nodes that build the environment may have the file.
            elsewhere = config.cluster and config.cluster.build_on == "job" and own_lock.is_path(asked) and not Path(asked).exists()
            unknown = error.reason == "nvidia_smi_failed" or elsewhere
            state: Literal["problem", "not checked"] = "not checked" if unknown else "problem"
            yield Finding(state, f"environments.{name}.lock: {error.what} {error.do or ''}", loc)
            continue
        except OSError as error:
            yield Finding("not checked", f"environments.{name}.lock: {error.filename} cannot be read here ({error.strerror})", loc)
            continue
        if built:
            yield Finding("ok", f"environments.{name}.lock: {lock.name} exists already in {cache}", loc)
        elif lock.own:
            yield Finding(
                "ok", f"environments.{name}.lock: {asked} has {len(lock.packages())} packages with digests; disk space is not checked"
            )
        else:
            missing[asked] = lock.gib
    lm_eval = lockfiles.accuracy(lockfiles.ENVS)
    if any(one.checks for one in config.deployments.values()) and not (build.prefix_of(lm_eval, cache) / build.MARKER).exists():
        missing[lm_eval.name] = lm_eval.gib
    if missing:
        place, needed = storage.existing(cache), sum(missing.values())
        what = f"`lock: {' and '.join(missing)}`, up to {needed:.0f} GiB to build in {cache}; {storage.free_words(place)}"
        if not os.access(place, os.W_OK | os.X_OK):
            yield Finding("problem", f"cache: you may not write in {place}. Set `cache` to another folder.")
        elif shutil.disk_usage(place).free < needed * 2**30:
            yield Finding("problem", f"cache: no room for {what}. Free space there, or set `cache` to a folder on a larger disk.")
        else:
            yield Finding("ok", f"cache: room for {what}")


def _lock(key: str, asked: str, cluster: Site | None) -> Lock:
    """Return the lock file of an environment. The hardware of a cluster's nodes is unknown here: for ``auto`` the largest that may fit."""
    locks = lockfiles.table(lockfiles.ENVS)
    if own_lock.is_path(asked):
        return lockfiles.own(asked, lockfiles.ENVS, sys.version_info[:2], platform.machine())
    if cluster is None:
        return lockfiles.choose(key, asked, lockfiles.ENVS, hardware.probe(), sys.version_info[:2], platform.machine())
    if asked != lockfiles.AUTO:
        return locks[asked]
    fitting = [lock for lock in locks.values() if bool(lock.cuda) == bool(cluster.gpus_per_node) and platform.machine() in lock.machines]
    return max(fitting or locks.values(), key=lambda lock: lock.gib)
