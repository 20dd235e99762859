"""The digest of an image in a registry: OCI distribution specification 1.1, "Pulling manifests"; Docker registry, token authentication."""

import ipaddress
import re
from dataclasses import dataclass

import httpx2

from servemark.errors import EnvironmentRefused

TIMEOUT_S = 30.0
# Names without a host are Docker Hub's, whose interface has this address.
_HUB, _HUB_ADDRESS = "docker.io", "registry-1.docker.io"
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


@dataclass(frozen=True)
class Reference:
    """An image in a registry. ``host``: with port; ``digest``: ``sha256:HEX``, or None for a tag."""

    host: str
    repository: str
    tag: str
    digest: str | None

    @classmethod
    def parse(cls, name: str) -> "Reference":
        """Parse ``[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`` as Docker does: a host has a dot or a port, or is localhost."""
        name, _, digest = name.removeprefix("docker://").partition("@")
        first, slash, rest = name.partition("/")
        is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
        host, path = (first, rest) if is_host else (_HUB, name)
        repository, _, tag = path.partition(":")
        if host == _HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(host, repository, tag or "latest", digest or None)

    @property
    def on_loopback(self) -> bool:
        """Whether the registry is a program of this machine; such a registry needs no certificate."""
        name = self.host.rpartition(":")[0] or self.host
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    def pinned(self, digest: str) -> str:
        """Return ``HOST/REPOSITORY@DIGEST``."""
        return f"{self.host}/{self.repository}@{digest}"

    def enroot(self, digest: str) -> str:
        """Return the image as enroot spells it. Its releases before 4.0 accept a digest only in place of a tag."""
        return f"docker://{_HUB_ADDRESS if self.host == _HUB else self.host}#{self.repository}:{digest}"


def resolve(key: str, reference: Reference) -> str:
    """Return the digest of an image, ``sha256:HEX``; of a tag, the one that it has now.

    Args:
        key: the key of the configuration, for messages.

    Raises:
        EnvironmentRefused: the registry does not report it.
    """
    if reference.digest:
        return reference.digest
    digest, why = "", ""
    # A registry on loopback has no certificate that a machine trusts. charliecloud speaks only https to it.
    for scheme in ("https", "http") if reference.on_loopback else ("https",):
        try:
            digest, why = _ask(scheme, reference)
            break
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            why = str(error) or type(error).__name__
    if is_digest(digest):
        return digest
    raise EnvironmentRefused(
        f"{key}: the registry {reference.host} reports no digest for {reference.repository}:{reference.tag} ({why}). A tag may name "
        "another image tomorrow, so servemark does not use it without its digest.",
        do="Check the name and the network. For a private image, write the digest yourself: docker://NAME@sha256:DIGEST (`skopeo inspect` "
        "prints it). Or fetch the image with your runtime and set its file or folder.",
        reason="image_unresolved",
    )


def _ask(scheme: str, reference: Reference) -> tuple[str, str]:
    """Return the digest that the registry reports, or an empty text, and the status of its response."""
    address = _HUB_ADDRESS if reference.host == _HUB else reference.host
    url = f"{scheme}://{address}/v2/{reference.repository}/manifests/{reference.tag}"
    near = reference.on_loopback
    with httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S, trust_env=not near, verify=not near) as client:
        headers = {"Accept": _MANIFESTS}
        response = client.head(url, headers=headers)
        if response.status_code == 401 and (token := _token(client, response.headers.get("WWW-Authenticate", ""))):
            response = client.head(url, headers={**headers, "Authorization": f"Bearer {token}"})
        return response.headers.get("Docker-Content-Digest", ""), f"HTTP {response.status_code}"


def is_digest(digest: str) -> bool:
    """Return whether a text is a digest of sha256."""
    return re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is not None


def _token(client: httpx2.Client, challenge: str) -> str | None:
    """Return a token for reading without an account; None if the registry offers none."""
    kind, _, rest = challenge.partition(" ")
    asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = asked.pop("realm", "")
    if kind.lower() != "bearer" or not realm:
        return None
    data = client.get(realm, params=asked).json()
    return data.get("token") or data.get("access_token") if isinstance(data, dict) else None
