"""Requests to the hub through public functions of huggingface_hub. Imported only for a download: the import takes 0.3 s."""

import glob
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, set_client_factory, snapshot_download
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import disable_progress_bars, logging

from servemark.files import storage
from servemark.progress import Progress
from servemark.weights import hub_token
from servemark.weights.hub_refusals import endpoint, refused
from servemark.weights.hub_source import HubSource, RemoteFile, is_commit

LARGEST = constants.MAX_HTTP_DOWNLOAD_SIZE
"""The hub sends no larger file, in bytes, over plain HTTP."""
PAUSES_S = (2.0, 8.0, 30.0, 60.0)
"""Seconds before each further try. huggingface_hub itself repeats most requests before it reports an error."""
TIMEOUT_S = 60.0
LISTING_S = 30.0
"""Seconds without a byte of a listing. A firewall that drops packets gives no other sign."""
CODES = {"GatedRepo": "hub_gated", "RepoNotFound": "hub_repository_missing", "RevisionNotFound": "hub_revision_missing",
         "EntryNotFound": "hub_file_missing"}  # fmt: skip
"""Reason by the hub's own error code (header X-Error-Code)."""
STATUSES = {401: "hub_repository_missing", 403: "hub_forbidden", 404: "hub_repository_missing", 408: "hub_out_of_order", 429: "hub_busy"}

# No xet: it needs further hosts behind a site's firewall and keeps a cache in the home directory.
constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = constants.HF_HUB_DISABLE_TELEMETRY = True
disable_progress_bars()
# Warnings quote signed addresses of the hub's store.
logging.set_verbosity(logging.ERROR)
set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S))


def listing(source: HubSource, revision: str, progress: Progress, *, patient: bool = True) -> tuple[str, dict[str, RemoteFile]]:
    """Return the commit that a revision names now, and its files by path. ``patient``: try again if the hub cannot be reached."""

    def work(access: dict[str, Any]) -> tuple[str, dict[str, RemoteFile]]:
        # Without a number the library passes None, which removes the client's own limit.
        info: Any = HfApi(**access).repo_info(
            source.repository, revision=revision, repo_type=source.kind, timeout=LISTING_S, files_metadata=True
        )
        found = [(one.rfilename, one.size, one.lfs.sha256 if one.lfs else one.blob_id) for one in info.siblings]
        if not is_commit(info.sha) or any(None in file for file in found):
            raise ValueError("no commit, size or digest")
        return info.sha, {file[0]: RemoteFile(*file) for file in found}

    commit, files = _request(source, progress, work, lambda: None, PAUSES_S if patient else ())
    return commit, files


def download(
    source: HubSource,
    commit: str,
    folder: Path,
    paths: Collection[str],
    progress: Progress,
    wait: Callable[[], None],
    *,
    patient: bool = True,
) -> None:
    """Download missing files into ``folder``; call ``wait`` every second meanwhile. ``patient``: see :func:`listing`."""

    def work(access: dict[str, Any]) -> None:
        # Not the cache in the home directory: the library would copy a damaged file from it at each run.
        where = access | {"local_dir": folder, "cache_dir": folder / ".cache"}
        names = [glob.escape(path) for path in paths]
        try:
            snapshot_download(source.repository, revision=commit, repo_type=source.kind, allow_patterns=names, **where)
        except OSError as error:
            if error.errno is None:
                raise
            raise storage.refusal(error, folder) or refused(source, "weights_unwritable", str(error), folder) from None
        # If the folder has files and the hub cannot list its own, the library returns without an error.
        if missing := [path for path in paths if not (folder / path).is_file()]:
            raise httpx2.ReadError(f"missing after the download: {missing[0]}")

    _request(source, progress, work, wait, PAUSES_S if patient else ())


def _request(
    source: HubSource, progress: Progress, work: Callable[[dict[str, Any]], Any], wait: Callable[[], None], pauses_s: Sequence[float]
) -> Any:
    """Run ``work`` in a thread; repeat it after a pause if that may help.

    Raises:
        WeightsRefused: the hub refuses or cannot be reached.
    """
    token = hub_token.find().text
    if not (token.isascii() and token.isprintable()):
        raise refused(source, "hub_unauthorised", "it contains characters that are not allowed in a token")
    # False, because with None the library looks for a token itself.
    access: dict[str, Any] = {"endpoint": endpoint(), "token": token or False}
    pauses = iter(pauses_s)
    with futures.ThreadPoolExecutor(1) as pool:
        while True:
            try:
                future = pool.submit(work, access)
                while not futures.wait([future], 1.0).done:
                    wait()
                return future.result()
            except KeyboardInterrupt:
                # A stage has to end within seconds. Python would wait until the library's threads have finished their files.
                os._exit(130)
            except (httpx2.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
                reason, quoted, again = _explain(error)
            refusal = refused(source, reason, quoted)
            if not again or (pause_s := next(pauses, None)) is None:
                raise refusal
            progress.say(f"{refusal.what} Trying again in {pause_s:.0f} s.")
            time.sleep(pause_s)


def _explain(error: BaseException) -> tuple[str, str, bool]:
    """Return the reason, the hub's or the system's words, and whether to try again."""
    while isinstance(error, LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        status, code = error.response.status_code, error.response.headers.get("X-Error-Code", "")
        reason = CODES.get(code) or STATUSES.get(status, "hub_out_of_order" if status >= 500 else "hub_refused")
        if status == 401 and hub_token.find().text and code not in CODES:
            reason = "hub_unauthorised"
        # Not the error's own text: it may quote a signed address of the hub's store.
        return reason, f"{status} {error.server_message or ''}", status in (408, 429) or status >= 500
    if isinstance(error, httpx2.HTTPError):
        return "hub_unreachable", str(error) or type(error).__name__, True
    if isinstance(error, OSError) and not isinstance(error, FileMetadataError | LocalEntryNotFoundError):
        # The library raises this error for a file whose length differs from the announced one.
        return "hub_digest_differs", str(error), False
    return "hub_unreachable", "the response has another form than the hub's; it may come from a proxy", False
