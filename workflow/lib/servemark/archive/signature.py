"""Sign an archive with an SSH key, and check the signature, by ``ssh-keygen -Y`` (OpenSSH 8.2 or newer; ssh-keygen(1), ALLOWED SIGNERS).

The signature covers the bytes of the archive file, so ``ssh-keygen`` alone can check it too (docs/how-to/archive.md).
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from servemark.errors import ServemarkError
from servemark.records import write_atomically

NAMESPACE = "servemark@archive"
"""Purpose of the signatures. A signature for another purpose, such as git's, does not count."""
SUFFIX = ".sig"
_OWN_KEYS = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")
_PUBLIC = re.compile(r"(ssh|ecdsa|sk)-\S+ AAAA\S+")


class CannotSign(ServemarkError):
    """The key, the archive or ssh-keygen cannot be used. Nothing was written."""

    exit_code = 2
    default_reason = "cannot_sign"


@dataclass(frozen=True)
class Signature:
    """The result of a check.

    Attributes:
        signer: who signed, and the fingerprint of the key; empty if the signature does not hold.
        wrong: the problem found, in a sentence; empty if the signature holds.
    """

    signer: str = ""
    wrong: str = ""


def beside(archive: Path) -> Path:
    """Return the path of an archive's signature."""
    return archive.with_name(archive.name + SUFFIX)


def sign(archive: Path, key: Path | None = None) -> Path:
    """Sign an archive; return the file with the signature.

    Args:
        key: a private key, or the public one of a key that ssh-agent has. Default: the user's first key in ``~/.ssh``. ssh-keygen asks
            for a passphrase at the terminal.

    Raises:
        CannotSign: there is no key, or ssh-keygen refuses it.
    """
    key = key or _own_key()
    if not key.is_file():
        raise CannotSign(f"The key {key} does not exist.", do="Pass an SSH key with --key, or make one: ssh-keygen -t ed25519")
    program = _program()
    with tempfile.TemporaryDirectory(prefix="servemark-sign-") as folder:
        # ssh-keygen writes next to the file that it signs, and asks before it replaces an older signature.
        link = Path(folder) / archive.name
        link.symlink_to(archive.absolute())
        # Its standard input and error stay the user's: it asks for a passphrase, or for a touch of a security key.
        done = subprocess.run([program, "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(link)], check=False)
        made = beside(link)
        if done.returncode or not made.is_file():
            raise CannotSign(
                f"ssh-keygen cannot sign with {key} (exit code {done.returncode}); its own message is above.",
                do="Pass a private key, or the public one of a key that `ssh-add -l` lists. With a passphrase, run this at a terminal.",
            )
        write_atomically(beside(archive), made.read_bytes())
    return beside(archive)


def check(archive: Path, keys: Path) -> Signature:
    """Compare an archive's signature with the archive and with trusted keys.

    Args:
        keys: a public key, or a file of allowed signers.

    Raises:
        CannotSign: ``keys`` holds no public key, or ssh-keygen cannot check signatures.
    """
    signers = _allowed(keys)
    file = beside(archive)
    if not file.is_file():
        return Signature(wrong=f"{file.name} is missing, so nobody has signed {archive.name}.")
    with archive.open("rb") as content:
        held = _keygen("check-novalidate", ["-n", NAMESPACE, "-s", str(file)], content)
    if held.returncode:
        return Signature(
            wrong=f"{file.name} is no signature of {archive.name}, which was changed or signed for another purpose: {_words(held)}"
        )
    fingerprint = re.search(r"SHA256:\S+", _words(held))
    by = fingerprint[0] if fingerprint else "another key"
    with tempfile.TemporaryDirectory(prefix="servemark-signers-") as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text(signers, encoding="utf-8")
        found = _keygen("find-principals", ["-s", str(file), "-f", str(allowed)])
        for name in found.stdout.decode(errors="replace").replace(",", "\n").splitlines() if not found.returncode else ():
            with archive.open("rb") as content:
                good = _keygen("verify", ["-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(file)], content)
            if not good.returncode:
                return Signature(signer=f"{name} ({by})")
    return Signature(wrong=f"{archive.name} was signed by {by}, which {keys} does not allow.")


def _own_key() -> Path:
    found = [path for name in _OWN_KEYS if (path := Path.home() / ".ssh" / name).is_file()]
    if not found:
        raise CannotSign(f"There is no SSH key in {Path.home() / '.ssh'}.", do="Pass one with --key, or make one: ssh-keygen -t ed25519")
    return found[0]


def _allowed(keys: Path) -> str:
    """Return the content of a file of allowed signers. A public key becomes one with the file's name as its signer."""
    try:
        text = keys.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CannotSign(f"{keys} cannot be read: {error}", do="Pass a public key (FILE.pub) or a file of allowed signers.") from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if "PRIVATE KEY" in text:
        raise CannotSign(f"{keys} is a private key.", do="Pass the sender's public key (FILE.pub) or a file of allowed signers.")
    if not any(re.search(_PUBLIC, line) for line in lines):
        raise CannotSign(f"{keys} contains no public key.", do="Pass a public key (FILE.pub) or a file of allowed signers.")
    name = re.sub(r"[^\w.@-]", "_", keys.name)
    return "".join(f"{name} {line}\n" if _PUBLIC.match(line) else f"{line}\n" for line in lines)


def _program() -> str:
    """Return the path of ssh-keygen.

    Raises:
        CannotSign: it is missing or too old.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        do = "Install OpenSSH's client (Debian and Ubuntu: openssh-client; RHEL: openssh), version 8.2 or newer."
        raise CannotSign("ssh-keygen is not in the PATH.", do=do, reason="no_ssh_keygen")
    # Every version refuses this. One without signatures does not know the option.
    known = subprocess.run([program, "-Y", "check-novalidate"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if re.search(rb"unknown option|[Uu]nsupported operation|illegal option", known.stderr):
        do = "Use OpenSSH 8.2 or newer: `ssh -V` prints the version."
        raise CannotSign(f"{program} is too old to check signatures.", do=do, reason="no_ssh_keygen")
    return program


def _keygen(task: str, arguments: Sequence[str], content: IO[bytes] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a task of ``ssh-keygen -Y`` that asks nothing, with ``content`` as its standard input."""
    argv = [_program(), "-Y", task, *arguments]
    return subprocess.run(argv, stdin=content or subprocess.DEVNULL, capture_output=True, check=False)


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join((done.stdout + b"\n" + done.stderr).decode(errors="replace").split())[:300] or f"exit code {done.returncode}"
