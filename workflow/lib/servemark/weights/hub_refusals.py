"""What a user is told when the hub, the way to it or the disk refuses: what happened, where, what to do. Nothing is asked here."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.storage import size
from servemark.weights.hub_source import HubSource

TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name
KEPT = "What was fetched is kept: the same command goes on from there."


def in_a_job() -> bool:
    """Whether this process runs in a job of a scheduler, where secrets are not handed on and the outside may be out of reach."""
    return "SLURM_JOB_ID" in os.environ


def shown(endpoint: str) -> str:
    """An endpoint without the user and password that it may hold."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def answered(
    source: HubSource, endpoint: str, status: int, code: str | None, said: str, *, signed_in: bool, tries: int = 1
) -> WeightsRefused:
    """The hub answered with an error.

    Args:
        status: of HTTP.
        code: the hub's own word for the error (header X-Error-Code), e.g. GatedRepo.
        said: the hub's own sentence; may be empty.
        signed_in: a token was sent.
        tries: how often was asked.
    """
    name, page = source.repository, f"{shown(endpoint)}/{source.repository}"
    words = f" ({status}: {said})" if said else f" ({status})"
    if code == "GatedRepo":
        token = (
            f"the account of {TOKEN} has no access to it yet"
            if signed_in
            else f"no token was sent, because {TOKEN} is not set"
        )
        return _refused(
            f"The model {name} is gated, and {token}{words}.",
            page,
            f"Accept its licence on that page with your account and wait until access is granted; {_export()}",
            "hub_gated",
        )
    if status == 401 and signed_in and code != "RepoNotFound":
        return _refused(
            f"The hub does not take {TOKEN}{words}.",
            page,
            f"Make another token with read access (settings of your account, Access Tokens); {_export()} "
            f"For a public model: unset {TOKEN}.",
            "hub_unauthorised",
        )
    if code == "RevisionNotFound":
        return _refused(
            f"The model {name} has no revision {source.revision!r}{words}.",
            f"{page}/tree/main",
            "Give a branch, a tag or a whole commit that its page names, as in `hf:ORG/NAME@REVISION`; without one: main.",
            "hub_revision_missing",
        )
    if code == "EntryNotFound":
        return _refused(
            f"The hub lists a file of {name} that it does not have{words}.",
            page,
            "Run again; if it stays so, name another revision.",
            "hub_file_missing",
        )
    if status in (401, 404):
        return _refused(
            f"There is no model {name} on the hub that {'this account' if signed_in else 'everybody'} may see{words}.",
            page,
            f"Check the spelling of ORG/NAME. If it is private: {_export()}",
            "hub_repository_missing",
        )
    if status == 403:
        return _refused(
            f"The hub forbids to read {name}{words}.",
            page,
            f"A fine-grained token needs read access to this repository, and for gated models to public gated ones; {_export()}",
            "hub_forbidden",
        )
    if status == 429:
        return _refused(
            f"The hub has had too many requests from here{words}; asked {_times(tries)}.",
            page,
            f"Wait some minutes and run again. {KEPT} With {TOKEN} exported the hub allows more.",
            "hub_busy",
        )
    if status >= 500:
        return _refused(
            f"The hub is out of order{words}; asked {_times(tries)}.",
            page,
            f"Run again later. {KEPT}",
            "hub_out_of_order",
        )
    return _refused(f"The hub refuses to give {name}{words}.", page, f"Run again later. {KEPT}", "hub_refused")


def unreachable(source: HubSource, endpoint: str, why: str, tries: int) -> WeightsRefused:
    """The hub cannot be reached, or what answers is no hub."""
    node = " Compute nodes often have no way out: write `stage_on: login` in the cluster's file." if in_a_job() else ""
    return _refused(
        f"The hub cannot be reached for {source.repository} ({why}); tried {_times(tries)}.",
        shown(endpoint),
        f"Check the network, HTTPS_PROXY and NO_PROXY, and HF_ENDPOINT if it is set; then run again. {KEPT}{node}",
        "hub_unreachable",
    )


def offline(source: HubSource, home: Path) -> WeightsRefused:
    """The hub may not be asked and the model is not staged."""
    return _refused(
        f"The model {source.repository}@{source.revision} is not staged, and HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids "
        "to ask the hub.",
        str(home),
        "Stage it where the hub can be reached, such as a login node: run there with HF_HUB_OFFLINE unset and the same cache, or "
        f"copy that run's folder {'/'.join(home.parts[-3:])} to the place above (cp -r; it has hidden files). Or fetch it there by "
        f"`hf download {source.repository} --revision {source.revision} --local-dir DIR`, copy DIR and give `source: DIR`.",
        "hub_offline",
    )


def no_space(source: HubSource, place: Path, needed: int, free: int) -> WeightsRefused:
    """The disk has less room than the files that are still to be fetched."""
    return _refused(
        f"{source.repository} needs {size(needed)} more on the disk, and {size(free)} are free ({storage.mount_point(place)}).",
        str(place),
        "Make room there, or put the cache on a larger disk (`cache: DIR`).",
        "disk_full",
    )


def cannot_write(source: HubSource, place: Path, error: OSError) -> WeightsRefused:
    """The disk does not take what was fetched: full, over quota, not ours to write."""
    why = storage.refusal(error, place)
    return _refused(
        f"{source.repository} cannot be written: {why.what if why else error.strerror or error}",
        str(place),
        f"Check quota, room and permissions there, or put the cache on another disk (`cache: DIR`). {KEPT}",
        why.reason if why else "weights_unwritable",
    )


def too_large(source: HubSource, commit: str, path: str, given: int, limit: int) -> WeightsRefused:
    """A single file is larger than what the hub gives by plain HTTP."""
    return _refused(
        f"{path} of {source.repository} has {size(given)}, and by plain HTTP the hub gives no file above {size(limit)}.",
        None,
        f"Fetch it by `hf download {source.repository} --revision {commit} --local-dir DIR` and give `source: DIR`.",
        "hub_file_too_large",
    )


def wrong_content(source: HubSource, path: str, place: Path, what: str) -> WeightsRefused:
    """A file was fetched whole and is another one than the hub states. It has been removed."""
    return _refused(
        f"{path} of {source.repository} was fetched and is not what the hub states: {what}. It was removed.",
        str(place),
        f"Run again; if it stays so, a proxy, a mirror (HF_ENDPOINT) or the disk changes what passes. {KEPT}",
        "hub_digest_differs",
    )


def _export() -> str:
    text = f"export {TOKEN} in the shell that starts snakemake (never in the configuration)."
    return text + " Jobs do not get it: write `stage_on: login` in the cluster's file." if in_a_job() else text


def _times(tries: int) -> str:
    return "once" if tries == 1 else f"{tries} times"


def _refused(what: str, look: str | None, do: str, reason: str) -> WeightsRefused:
    return WeightsRefused(what, look=look, do=do, reason=reason)
