"""The hub through its own client, huggingface_hub: one listing, and files that go on where they stopped.

Imported only when the hub is asked, since the client takes half a second to load.

Plain HTTP on purpose, never hf-xet: xet needs further hosts behind a site's firewall, keeps a cache in the home directory
and throws away what it has of a file when it is interrupted. So does the client's ``hf_hub_download`` (2.4.0), which is why its own
``http_get`` is called here, with the part of a file that is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from servemark import __version__
from servemark.errors import WeightsRefused
from servemark.weights import hub_files, hub_refusals
from servemark.weights.hub_files import Listing, RemoteFile
from servemark.weights.hub_refusals import TOKEN
from servemark.weights.hub_source import HubSource, is_commit

DEFAULT_ENDPOINT = "https://huggingface.co"
LISTING_TIMEOUT_S = 60.0
CLIENT_TRIES = 6
"""How often the client itself asks for a file that is answered with 429."""
LARGEST = constants.MAX_HTTP_DOWNLOAD_SIZE

# Not by the environment, which whatever this process starts would inherit. Without telemetry the client also asks no further address
# about its surroundings.
constants.HF_HUB_DISABLE_TELEMETRY = True
disable_progress_bars()


@dataclass(frozen=True)
class Patience:
    """How often a hub that does not answer is asked before we give up, and how long is waited in between, doubling, in seconds.

    Within a file, tries without a new byte are counted. An answer 429 to a file is waited for by the client itself (5 times, as long
    as the hub asks) and not asked again here.
    """

    tries: int = 6
    first_s: float = 2.0
    longest_s: float = 60.0

    def pause_s(self, failures: int) -> float:
        return min(self.longest_s, self.first_s * 2 ** (failures - 1))


class Hub:
    """One repository of the hub. Address and token come from the environment: HF_ENDPOINT, HF_TOKEN."""

    def __init__(self, source: HubSource, patience: Patience, tell: Callable[[str], None]):
        self.source, self._patience, self._tell = source, patience, tell
        self.endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
        if not self.endpoint.startswith(("https://", "http://")):
            raise WeightsRefused(
                f"HF_ENDPOINT is no address: {hub_refusals.shown(self.endpoint)!r}.",
                do="Write it with https:// in front, or unset it for the Hugging Face hub itself.",
                reason="hub_unreachable",
            )
        self._token = _token()
        # False, since with None the client would look for a token in the home directory.
        self._headers = build_hf_headers(
            token=self._token or False, library_name="servemark", library_version=__version__
        )
        # A compressed body could not be gone on with.
        self._headers["Accept-Encoding"] = "identity"

    def listing(self, revision: str) -> Listing:
        """The files at a revision, and the commit that it is now.

        Raises:
            WeightsRefused: the hub refuses, cannot be reached, or answers as no hub does.
        """
        api = HfApi(self.endpoint, token=self._token or False, library_name="servemark", library_version=__version__)
        failures = 0
        while True:
            try:
                info = api.model_info(
                    self.source.repository, revision=revision, timeout=LISTING_TIMEOUT_S, files_metadata=True
                )
                return _listing(info.sha, info.siblings, revision)
            except httpx2.HTTPError as error:
                failures += 1
                if not _passes(error, also=(408, 429)) or failures >= self._patience.tries:
                    raise self._refusal(error, failures) from None
            except (ValueError, KeyError, TypeError, AttributeError):
                raise hub_refusals.unreachable(
                    self.source, self.endpoint, "what answers there is no hub; a proxy's page, perhaps", 1
                ) from None
            self._pause(failures)

    def fetch(self, commit: str, file: RemoteFile, target: Path) -> None:
        """Bring one file to ``target``, which appears when it is whole and what the hub states; until then its part lies beside it.

        Raises:
            WeightsRefused: the hub refuses or cannot be reached, the disk does not take it, or it is another file than the hub states.
        """
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            went_on = self._fetch_part(commit, file, part)
            wrong = hub_files.differs(file, part)
            if wrong and went_on:
                # The old part may have been at fault: a disk that lost what it had confirmed.
                part.unlink()
                self._fetch_part(commit, file, part)
                wrong = hub_files.differs(file, part)
            if wrong:
                part.unlink()
                raise hub_refusals.wrong_content(self.source, file.path, target.parent, wrong)
            part.rename(target)
        except OSError as error:
            raise hub_refusals.cannot_write(self.source, target, error) from None

    def _fetch_part(self, commit: str, file: RemoteFile, part: Path) -> bool:
        """Fetch what ``part`` lacks; whether something of it was there before."""
        url = hf_hub_url(self.source.repository, file.path, revision=commit, endpoint=self.endpoint)
        if _size(part) > file.size:
            part.unlink()
        begun = _size(part)
        failures = 0
        while True:
            before = _size(part)
            try:
                with part.open("ab") as stream:
                    http_get(
                        url,
                        stream,
                        resume_size=before,
                        headers=self._headers,
                        expected_size=file.size,
                        displayed_filename=file.path,
                    )
                return begun > 0
            except httpx2.HTTPError as error:
                failures = 1 if _size(part) > before else failures + 1
                if _status(error) == 416:
                    part.unlink()
                elif not _passes(error):
                    raise self._refusal(error, CLIENT_TRIES if _status(error) == 429 else failures) from None
                if failures >= self._patience.tries:
                    raise self._refusal(error, failures) from None
            except OSError as error:
                # The client's own word for a body of another length has no number.
                failures += 1
                if error.errno is not None:
                    raise
                if failures >= self._patience.tries:
                    part.unlink()
                    raise hub_refusals.wrong_content(
                        self.source, file.path, part.parent, "its length differs"
                    ) from None
                if _size(part) > file.size:
                    part.unlink()
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        seconds = self._patience.pause_s(failures)
        self._tell(
            f"the hub did not answer as it should ({failures} of {self._patience.tries}); again in {seconds:.0f} s"
        )
        time.sleep(seconds)

    def _refusal(self, error: httpx2.HTTPError, tries: int) -> WeightsRefused:
        if not isinstance(error, HfHubHTTPError):
            why = self._clean(str(error)) or type(error).__name__
            return hub_refusals.unreachable(self.source, self.endpoint, why, tries)
        # Not the error's own text: it holds the address, which may be a signed one of the hub's store.
        return hub_refusals.answered(
            self.source,
            self.endpoint,
            error.response.status_code,
            error.response.headers.get("X-Error-Code"),
            self._clean(error.server_message or ""),
            signed_in=self._token is not None,
            tries=tries,
        )

    def _clean(self, text: str) -> str:
        """One line of what somebody else has said, without the token should it be in there."""
        line = " ".join(text.split())[:300].rstrip(".")
        return line.replace(self._token, "***") if self._token else line


def _listing(commit: str | None, siblings: list | None, revision: str) -> Listing:
    if commit is None or not is_commit(commit) or (is_commit(revision) and commit != revision):
        raise ValueError("no commit, or another one")
    return Listing(commit, tuple(_file(sibling) for sibling in siblings or ()))


def _file(sibling) -> RemoteFile:
    size = sibling.size if sibling.size is not None else sibling.lfs["size"]
    sha256 = sibling.lfs["sha256"] if sibling.lfs else None
    return RemoteFile(sibling.rfilename, int(size), sha256, None if sha256 else sibling.blob_id)


def _token() -> str | None:
    token = os.environ.get(TOKEN, "").strip()
    if any(not "!" <= character <= "~" for character in token):
        raise WeightsRefused(
            f"{TOKEN} holds characters that no token has, such as a space or a line's end.",
            do="Export it anew, copied as a whole from your account's page; it is not shown here.",
            reason="hub_unauthorised",
        )
    return token or None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _passes(error: Exception, also: tuple[int, ...] = ()) -> bool:
    """Whether asking again may help: the way was cut, or the hub is out of order."""
    status = _status(error)
    return status is None or status >= 500 or status in also
