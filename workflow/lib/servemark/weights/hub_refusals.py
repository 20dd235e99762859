"""The errors of the hub: what happened, where to look, what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from servemark.errors import WeightsRefused
from servemark.weights import hub_token

if TYPE_CHECKING:
    from servemark.weights.hub_source import HubSource

_PARTIAL = ("The repository {name} is not a complete model", "Use a complete checkpoint in safetensors form.")
_COMMANDS = {
    "model": "run `hf download {name} --revision {revision} --local-dir DIR` and set `source: DIR`.",
    "dataset": "run `hf download {name} --repo-type dataset --revision {revision} --cache-dir DIR` and set `hub_cache: DIR`.",
}
TEXTS = {
    "hub_gated": ("The {kind} {name} is gated", "Accept its licence on that page and wait until access is granted."),
    "hub_unauthorised": ("The hub does not accept the token", "Create a token with read access, or remove this one."),
    "hub_forbidden": ("The hub denies access to {name}", "Give the token read access to this repository."),
    "hub_repository_missing": ("The hub has no {kind} {name}, or your account may not see it", "Check the spelling of ORG/NAME."),
    "hub_revision_missing": ("The {kind} {name} has no revision {revision}", "Set a branch, a tag or a full commit."),
    "hub_file_missing": ("The hub does not deliver a file of {name} that it lists", "Set another revision."),
    "hub_busy": ("The hub limits requests from this address (HTTP 429)", "Wait some minutes. With HF_TOKEN the limit is higher."),
    "hub_out_of_order": ("The hub failed to deliver {name}", "Wait some minutes."),
    "hub_refused": ("The hub refused to deliver {name}", "Open that page in a browser."),
    "hub_unreachable": ("The hub cannot be reached for {name}",
        "Check the network connection and the variables HTTPS_PROXY, NO_PROXY and HF_ENDPOINT."),
    "hub_digest_differs": ("A file of {name} differs from the one that the hub lists, and was removed",
        "If the error repeats, a proxy, a mirror (HF_ENDPOINT) or the disk changes the content."),
    "hub_file_too_large": ("{name} has a file that is too large for a download over plain HTTP", "Instead, {command}"),
    "hub_offline": ("The {kind} {name}@{revision} is in no cache, and HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set",
        "If this machine reaches the hub, unset the variable. Or copy the folder named above from another cache. "
        "Or on another machine {command}"),
    "disk_full": ("The disk has no space for {name}", "Free space, or set `cache` to a folder on another disk."),
    "weights_unwritable": ("{name} cannot be written", "Check quota and permissions, or set `cache` to another disk."),
    "link_leaves_directory": ("{name} lists a hidden file or one outside its folder", "Use another HF_ENDPOINT."),
    **dict.fromkeys(("config_missing", "tokenizer_missing", "weights_missing", "shard_missing"), _PARTIAL),
}  # fmt: skip
"""What happened and what to do, by reason."""
TEMPORARY = ("hub_unreachable", "hub_out_of_order", "hub_busy")
"""Reasons for which a cached commit of a branch takes the place of the hub's response."""
ACCOUNT = ("hub_gated", "hub_unauthorised", "hub_forbidden", "hub_repository_missing")


def refused(source: HubSource, reason: str, quoted: str = "", look: Path | None = None) -> WeightsRefused:
    """Return the error for a reason of :data:`TEXTS`.

    Args:
        quoted: the hub's or the system's words.
        look: where to look; by default the model's page.
    """
    names = {"name": source.repository, "revision": source.revision, "kind": source.kind}
    what, do = (text.format(**names, command=_COMMANDS[source.kind].format(**names)) for text in TEXTS[reason])
    token = hub_token.find()
    if reason in ACCOUNT:
        do += f" {token.origin} Export HF_TOKEN in the shell that starts snakemake, or log in with `hf auth login`."
    if "SLURM_JOB_ID" in os.environ and reason in (*ACCOUNT, "hub_unreachable", "hub_offline"):
        do += " Jobs do not get HF_TOKEN and often cannot reach the hub: set `stage_on: login` in the cluster file."
    quoted = " ".join(quoted.replace(token.text or "\0", "***").split())[:300].rstrip(".")
    # Without the user name and password that an endpoint may have.
    page = f"{re.sub('//[^/]*@', '//', endpoint())}/{'datasets/' if source.kind == 'dataset' else ''}{source.repository}"
    what += f" ({quoted})." if quoted else "."
    return WeightsRefused(what, look=str(look or page), do=f"{do} Then rerun; complete files are kept.", reason=reason)


def endpoint() -> str:
    """Return the address of the hub, from ``HF_ENDPOINT`` or its default."""
    return os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"
