"""Archives are signed and checked with SSH keys by ssh-keygen, in servemark and by hand."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builders.archived_run import ArchivedRun
from servemark.archive import signature
from servemark.archive.signature import NAMESPACE, CannotSign, beside, check, sign
from servemark.cli import main as cli


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Return a folder with the key pairs ``own`` and ``other``."""
    if shutil.which("ssh-keygen") is None:
        (pytest.fail if os.environ.get("SERVEMARK_REQUIRE_SSH_KEYGEN") == "1" else pytest.skip)("ssh-keygen is not in the PATH")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)], check=True)
    return folder


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "run.tar.zst"
    path.write_bytes(b"content")
    return path


def test_signature_holds_for_public_key_and_allowed_signers(keys, archive, tmp_path):
    assert sign(archive, keys / "own") == beside(archive)
    assert check(archive, keys / "own.pub").wrong == ""
    assert check(archive, keys / "own.pub").signer.startswith("own.pub (SHA256:")
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"# ours\nmia@example.org,ada@example.org {(keys / 'other.pub').read_text()}bob {(keys / 'own.pub').read_text()}")
    assert check(archive, signers).signer.startswith("bob (SHA256:")
    sign(archive, keys / "other")
    assert check(archive, signers).signer.startswith("mia@example.org (SHA256:")


def test_signature_holds_for_ssh_keygen_alone(keys, archive, tmp_path):
    sign(archive, keys / "own")
    (tmp_path / "signers").write_text(f"bob {(keys / 'own.pub').read_text()}")
    by_hand = ["ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "bob", "-n", "servemark@archive", "-s", "run.tar.zst.sig"]
    with archive.open("rb") as content:
        assert subprocess.run(by_hand, stdin=content, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_signature_by_ssh_keygen_holds(keys, archive):
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", keys / "own", "-n", NAMESPACE, archive], check=True, capture_output=True)
    assert check(archive, keys / "own.pub").wrong == ""


def test_missing_signature_changed_archive_and_other_key_are_wrong(keys, archive, tmp_path):
    assert "run.tar.zst.sig is missing" in check(archive, keys / "own.pub").wrong
    sign(archive, keys / "other")
    wrong = check(archive, keys / "own.pub").wrong
    assert "SHA256:" in wrong and str(keys / "own.pub") in wrong
    archive.write_bytes(b"changed")
    assert "run.tar.zst.sig" in check(archive, keys / "other.pub").wrong
    beside(archive).write_text("no signature")
    assert check(archive, keys / "other.pub").wrong
    archive.write_bytes(b"content")
    git = subprocess.run(["ssh-keygen", "-Y", "sign", "-f", keys / "own", "-n", "git"], input=b"content", check=True, capture_output=True)
    beside(archive).write_bytes(git.stdout)
    assert "another purpose" in check(archive, keys / "own.pub").wrong
    sign(archive, keys / "own")
    (tmp_path / "signers").write_text(f'bob namespaces="git" {(keys / "own.pub").read_text()}')
    assert check(archive, tmp_path / "signers").wrong


@pytest.mark.parametrize("text", ["", "bob\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbg==\n"])
def test_file_without_public_key_is_refused(archive, tmp_path, text):
    (tmp_path / "given").write_text(text)
    with pytest.raises(CannotSign) as caught:
        check(archive, tmp_path / "given")
    assert caught.value.exit_code == 2 and str(tmp_path / "given") in caught.value.what
    with pytest.raises(CannotSign):
        check(archive, tmp_path / "absent")


def test_unusable_key_writes_no_signature(keys, archive, tmp_path, monkeypatch):
    (tmp_path / "junk").write_text("junk")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    shutil.copy(keys / "own.pub", tmp_path / "alone.pub")
    for key in (tmp_path / "absent", tmp_path / "junk", tmp_path / "alone.pub"):
        with pytest.raises(CannotSign) as caught:
            sign(archive, key)
        assert caught.value.exit_code == 2 and str(key) in caught.value.what and not beside(archive).exists()


def test_default_key_is_first_of_users_folder(keys, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(CannotSign) as caught:
        sign(archive)
    assert str(tmp_path / ".ssh") in caught.value.what
    (tmp_path / ".ssh").mkdir()
    for name, key in (("id_rsa", "other"), ("id_ed25519", "own")):
        shutil.copy(keys / key, tmp_path / ".ssh" / name)
    sign(archive)
    assert check(archive, keys / "own.pub").wrong == ""


def test_key_with_passphrase_asks_at_the_terminal(keys, archive, tmp_path):
    locked = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret words", "-f", str(tmp_path / "locked")]
    subprocess.run(locked, check=True)
    code = "import sys; from pathlib import Path; from servemark.archive.signature import sign; sign(*map(Path, sys.argv[1:]))"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code, str(archive), str(tmp_path / "locked")])
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the command has ended
        while block := os.read(terminal, 4096):
            if b"passphrase" in (shown := shown + block) and not shown.endswith(b"sent"):
                os.write(terminal, b"secret words\n")
                shown = b"sent"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert check(archive, tmp_path / "locked.pub").wrong == ""


def test_key_in_agent_signs(keys, archive, tmp_path, monkeypatch):
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not in the PATH")
    # A socket's name has at most 107 bytes.
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "s")], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None and agent.stdout.readline()
            monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "s"))
            subprocess.run(["ssh-add", "-q", str(keys / "own")], check=True, capture_output=True)
            (tmp_path / "own.pub").write_text((keys / "own.pub").read_text())
            sign(archive, tmp_path / "own.pub")
        finally:
            agent.terminate()
    assert check(archive, keys / "own.pub").wrong == ""


@pytest.mark.parametrize("script", [None, "echo 'ssh-keygen: unknown option -- Y' >&2; exit 1"])
def test_missing_or_old_ssh_keygen_is_refused(archive, tmp_path, monkeypatch, script):
    (tmp_path / "own.pub").write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOvN own\n")
    beside(archive).write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    if script:
        (tools / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "ssh-keygen").chmod(0o755)
    monkeypatch.setattr(signature.shutil, "which", lambda name: str(tools / name) if (tools / name).exists() else None)
    for call in (lambda: sign(archive, tmp_path / "own.pub"), lambda: check(archive, tmp_path / "own.pub")):
        with pytest.raises(CannotSign) as caught:
            call()
        assert (caught.value.reason, caught.value.exit_code) == ("no_ssh_keygen", 2) and "8.2" in str(caught.value.do)


def test_commands_sign_and_verify(keys, run: ArchivedRun, capsys):
    path, own = run.seal(), str(keys / "own")
    assert cli.main(["verify", str(path), "--key", f"{own}.pub"]) == 1
    assert f"{path.name}.sig is missing" in capsys.readouterr().err
    assert cli.main(["sign", str(path), "--key", own]) == 0
    assert str(beside(path)) in capsys.readouterr().out
    assert cli.main(["verify", str(path), "--key", f"{own}.pub"]) == 0
    assert "signed   by own.pub (SHA256:" in capsys.readouterr().out
    assert cli.main(["verify", str(path), "--key", str(keys / "other.pub")]) == 1
    assert cli.main(["verify", str(path), "--key", own]) == 2
    assert cli.main(["verify", str(path)]) == 0, "without a key, the signature is not checked"
    assert cli.main(["sign", str(run.folder), "--key", own]) == 2
    path.with_name(path.name + ".sha256").write_text(f"{'0' * 64}  {path.name}\n")
    beside(path).unlink()
    assert cli.main(["sign", str(path), "--key", own]) == 1 and not beside(path).exists()


def test_changed_archive_and_other_files_are_not_signed(keys, run: ArchivedRun, tmp_path):
    path, own = run.seal(), str(keys / "own")
    path.with_name(path.name + ".sha256").unlink(missing_ok=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    other = tmp_path / "my.yaml"
    other.write_text("run: r\n")
    for file, code in ((path, 1), (other, 2)):
        assert cli.main(["sign", str(file), "--key", own]) == code and not beside(file).exists()
