"""Sealing: deterministic bytes, checks with common tools, refusal of secrets and unsafe names."""

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile

import pytest
import zstandard

from builders.paths import LIBRARY
from servemark.archive import seal as archive
from servemark.archive.seal import ArchiveRefused, seal
from servemark.security import secret_scan

CONTENT = {
    "report.html": b"<html></html>\n",
    "measurements/plain/chat-c1.json": b"{}\n",
    "measurements/plain/chat-c10.json": b"{}\n",
    "measurements/plain/chat-c1.raw.json": bytes(range(256)) * 5000,
    "logs/empty.log": b"",
    "logs/with space.log": b"x" * 512,
    "logs/größe.log": "ü\n".encode(),
    f"deep/{'d' * 90}/{'e' * 90}/{'f' * 90}.txt": b"a long name",
}

# Split, so that no secret scanner reports this file.
DIGITS = "0123456789abcdefghijABCDEFGHIJ012345"
SECRETS = {
    "hugging face": "hf" + "_" + DIGITS,
    "openai": "sk" + "-proj-" + DIGITS,
    "bearer": "Authorization: Bea" + "rer " + DIGITS,
    "bearer lower": "authorization: bea" + "rer " + DIGITS,
    "pem": "-----BEGIN RSA PRIV" + "ATE KEY-----",
    "pkcs8": "-----BEGIN PRIV" + "ATE KEY-----",
    "jwt": "ey" + "JhbGciOiJIUzI1NiJ9.ey" + "JzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "aws": "AK" + "IAIOSFODNN7EXAMPLE",
    "github": "gh" + "p_" + DIGITS,
    "github fine": "github" + "_pat_" + DIGITS,
}


def write(folder, content=None):
    files = {}
    for name, data in (CONTENT if content is None else content).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files[name] = path
    return files


def unpacked(path, folder):
    folder.mkdir()
    plain = io.BytesIO()
    zstandard.ZstdDecompressor().copy_stream(path.open("rb"), plain)
    plain.seek(0)
    with tarfile.open(fileobj=plain) as tar:
        tar.extractall(folder, filter="data")
    return folder


def members(path):
    with (
        path.open("rb") as stream,
        zstandard.ZstdDecompressor().stream_reader(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        return list(tar)


def test_archive_unpacks_into_one_folder(tmp_path):
    info = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst")
    out = unpacked(info.path, tmp_path / "out")
    assert [path.name for path in out.iterdir()] == ["demo"]
    for name, data in CONTENT.items():
        assert (out / "demo" / name).read_bytes() == data
    assert info.files == len(CONTENT) + 2
    assert info.size == info.path.stat().st_size


def test_sha256sum_checks_manifest(tmp_path):
    info = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst")
    folder = unpacked(info.path, tmp_path / "out") / "demo"
    check = ["sha256sum", "--strict", "-c", "manifest-sha256.txt"]
    good = subprocess.run(check, cwd=folder, capture_output=True, text=True)
    assert (good.returncode, good.stdout.count(": OK")) == (0, len(CONTENT) + 1)
    assert hashlib.sha256((folder / "manifest-sha256.txt").read_bytes()).hexdigest() == info.manifest_sha256
    (folder / "report.html").write_text("changed")
    bad = subprocess.run(check, cwd=folder, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "report.html: FAILED" in bad.stdout


def test_sha256sum_checks_archive(tmp_path):
    info = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst")
    done = subprocess.run(["sha256sum", "-c", "demo.tar.zst.sha256"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "demo.tar.zst: OK\n"
    assert hashlib.sha256(info.path.read_bytes()).hexdigest() == info.sha256


def test_commands_in_readme_work(tmp_path):
    if not shutil.which("zstd"):
        pytest.skip("the zstd command is not installed")
    info = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst")
    readme = (unpacked(info.path, tmp_path / "out") / "demo" / "README.txt").read_text()
    assert "tar --zstd -xf demo.tar.zst" in readme
    commands = "tar --zstd -xf demo.tar.zst && cd demo && sha256sum -c manifest-sha256.txt"
    assert subprocess.run(commands, shell=True, cwd=tmp_path, capture_output=True).returncode == 0


def test_same_content_gives_same_bytes(tmp_path):
    first = seal(write(tmp_path / "a"), tmp_path / "one" / "demo.tar.zst")
    files = write(tmp_path / "b" / "elsewhere")
    shuffled = list(files.items())
    random.Random(3).shuffle(shuffled)
    for number, (_, path) in enumerate(shuffled):
        os.utime(path, (number * 1e6, number * 1e6))
        path.chmod([0o600, 0o755, 0o444][number % 3])
    old = os.umask(0o077)
    try:
        second = seal(dict(shuffled), tmp_path / "two" / "demo.tar.zst")
    finally:
        os.umask(old)
    assert first.path.read_bytes() == second.path.read_bytes()
    assert (first.sha256, first.manifest_sha256) == (second.sha256, second.manifest_sha256)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])
def test_other_time_zone_and_locale_give_same_bytes(tmp_path, zone):
    here = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst")
    code = (
        "import sys, pathlib; from servemark.archive.seal import seal; folder, out = map(pathlib.Path, sys.argv[1:]);"
        "print(seal({str(p.relative_to(folder)): p for p in folder.rglob('*') if p.is_file()}, out).sha256)"
    )
    environment = {
        **os.environ, "TZ": zone, "LC_ALL": "C", "PYTHONUTF8": "1", "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(LIBRARY),
    }  # fmt: skip
    there = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "in", tmp_path / "x" / "demo.tar.zst"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert there.stdout.strip() == here.sha256


def test_members_are_sorted_and_have_fixed_headers(tmp_path):
    sealed = members(seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst").path)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.type) for m in sealed} == {(0, 0, 0, "", "", 0o644, tarfile.REGTYPE)}
    names = [m.name for m in sealed]
    assert names == sorted(names, key=str.encode)
    assert all(set(m.pax_headers) <= {"path"} for m in sealed)


def test_identity_depends_on_content_and_name(tmp_path):
    seals = [
        seal(write(tmp_path / str(n), content), tmp_path / str(n) / "out" / "demo.tar.zst").manifest_sha256
        for n, content in enumerate([{"a": b"1"}, {"a": b"2"}, {"b": b"1"}])
    ]
    assert len(set(seals)) == 3


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", "", ".", "..", "a\nb", "a\rb", "a\x00b", "a\\b", "a\x7f",
     "a\x85", "\udc80", "README.txt", "manifest-sha256.txt"],
    ids=ascii,
)  # fmt: skip
def test_unsafe_or_taken_name_is_refused(tmp_path, name):
    source = tmp_path / "x"
    source.write_text("x")
    with pytest.raises(ArchiveRefused):
        seal({name: source}, tmp_path / "out" / "demo.tar.zst")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("top", ["", "..", "a\nb"], ids=ascii)
def test_unsafe_top_folder_is_refused(tmp_path, top):
    with pytest.raises(ArchiveRefused):
        seal(write(tmp_path / "in"), tmp_path / "out" / f"{top}.tar.zst")


def test_missing_file_folder_and_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "none", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ArchiveRefused) as caught:
            seal({"a": source}, tmp_path / "out" / "demo.tar.zst")
        assert (caught.value.reason, caught.value.look) == ("archive_refused", str(source))


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("form", ["{}", 'x="{}"', "a\nb\n  key: {}\nc", "https://host/?q={}&r"])
def test_secret_is_refused_with_file_and_line(tmp_path, secret, form):
    text = form.format(secret)
    files = write(tmp_path / "in", {"good.txt": b"x", "logs/server.log": text.encode()})
    with pytest.raises(ArchiveRefused) as caught:
        seal(files, tmp_path / "out" / "demo.tar.zst")
    line = text[: text.index(secret)].count("\n") + 1
    assert caught.value.reason == "secret_found"
    assert f"logs/server.log, line {line}:" in str(caught.value)
    assert DIGITS[:16] not in str(caught.value)
    assert secret not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", [str, json.dumps, lambda text: f"GET /?key={text}"], ids=["plain", "json", "url"])
def test_secret_of_this_run_is_refused(tmp_path, form):
    secret = 'pa"ss\\wörd'
    files = write(tmp_path / "in", {"a.log": ("one\n" + form(secret)).encode()})
    with pytest.raises(ArchiveRefused, match=r"a\.log, line 2") as caught:
        seal(files, tmp_path / "demo.tar.zst", secrets={f"{secret}\n": "key of this run"})
    assert secret not in str(caught.value)
    seal(files, tmp_path / "demo.tar.zst", secrets=dict.fromkeys(["", " \n", "another"], ""))


def test_described_files_are_sealed(tmp_path):
    seen = {}

    def describe(digests):
        seen.update(digests)
        names = (*digests, "about.json")
        return {"about.json": json.dumps({"manifest": archive.manifest_size(names)}).encode()}

    info = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst", describe=describe)
    folder = unpacked(info.path, tmp_path / "out") / "demo"
    assert set(seen) == {*CONTENT, "README.txt"} and info.files == len(CONTENT) + 3
    for name, digest in seen.items():
        data = (folder / name).read_bytes()
        assert digest == (hashlib.sha256(data).hexdigest(), len(data))
    manifest = (folder / archive.MANIFEST).read_bytes()
    assert json.loads((folder / "about.json").read_text()) == {"manifest": len(manifest)}
    assert hashlib.sha256((folder / "about.json").read_bytes()).hexdigest().encode() + b"  about.json\n" in manifest


@pytest.mark.parametrize(
    ("made", "reason", "named"),
    [
        ({"report.html": b""}, "archive_refused", "'report.html'"),
        ({archive.MANIFEST: b""}, "archive_refused", archive.MANIFEST),
        ({"about.json": b"one\n" + SECRETS["github"].encode()}, "secret_found", "about.json, line 2: "),
    ],
)
def test_described_file_with_used_name_or_secret_is_refused(tmp_path, made, reason, named):
    with pytest.raises(ArchiveRefused) as caught:
        seal(write(tmp_path / "in"), tmp_path / "out" / "demo.tar.zst", describe=lambda _: made)
    assert caught.value.reason == reason and named in caught.value.what
    assert not (tmp_path / "out").exists()


def test_secret_in_file_name_is_refused(tmp_path):
    files = write(tmp_path / "in", {f"logs/{SECRETS['github']}.log": b"x"})
    with pytest.raises(ArchiveRefused) as caught:
        seal(files, tmp_path / "demo.tar.zst")
    assert caught.value.reason == "secret_found" and SECRETS["github"] not in str(caught.value)


@pytest.mark.parametrize("before", [-40, -20, -1, 0, 1, secret_scan.OVERLAP, -secret_scan.OVERLAP])
@pytest.mark.parametrize("chunks", [1, 2])
def test_secret_across_read_boundary_is_found(tmp_path, before, chunks):
    secret = SECRETS["hugging face"].encode()
    filler = (b"y" * 99 + b"\n") * (chunks * secret_scan.CHUNK // 100 + 1000)
    position = chunks * secret_scan.CHUNK + before
    data = filler[: position - 1] + b" " + secret + b"\n" + filler
    with pytest.raises(ArchiveRefused) as caught:
        seal(write(tmp_path / "in", {"a.log": data}), tmp_path / "demo.tar.zst")
    assert f"line {data[:position].count(bytes([10])) + 1}:" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "hf_xet was used; hf_" + "short",
        "task-" + DIGITS,
        "Authorization: Bearer $(cat key)",
        "Authorization: Bearer YOUR_API_KEY_GOES_HERE",
        "the bearer of this letter is welcome here",
        "-----BEGIN CERTIFICATE-----",
        "ghp_short",
        "sha256:" + hashlib.sha256(b"x").hexdigest(),
    ],
)
def test_text_similar_to_secret_is_accepted(tmp_path, text):
    seal(write(tmp_path / "in", {"a.log": text.encode()}), tmp_path / "demo.tar.zst")


def test_similar_text_at_window_start_is_accepted(tmp_path):
    # The second window begins OVERLAP bytes before the first read's end, here between "ta" and "sk-".
    data = b"y" * (secret_scan.CHUNK - secret_scan.OVERLAP - 2) + b"task-" + DIGITS.encode() + b"y" * secret_scan.CHUNK
    seal(write(tmp_path / "in", {"a.log": data}), tmp_path / "demo.tar.zst")


@pytest.mark.parametrize("late", [b"xxy", b"x", b"y" * 3, b""], ids=["longer", "shorter", "other", "emptied"])
def test_file_changed_during_sealing_keeps_earlier_archive(tmp_path, monkeypatch, late):
    files = write(tmp_path / "in", {"a.log": b"xx" if late != b"yyy" else b"xxx"})
    before = seal(files, tmp_path / "demo.tar.zst")
    real = archive._write

    def changing(*arguments):
        files["a.log"].write_bytes(late)
        real(*arguments)

    monkeypatch.setattr(archive, "_write", changing)
    with pytest.raises(ArchiveRefused, match=r"a\.log changed"):
        seal(files, tmp_path / "demo.tar.zst")
    assert hashlib.sha256(before.path.read_bytes()).hexdigest() == before.sha256
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.tar.zst", "demo.tar.zst.sha256", "in"]


def test_second_sealing_replaces_archive_and_checksum(tmp_path):
    seal(write(tmp_path / "in", {"a": b"1"}), tmp_path / "demo.tar.zst")
    info = seal(write(tmp_path / "in", {"a": b"2"}), tmp_path / "demo.tar.zst")
    assert (tmp_path / "demo.tar.zst.sha256").read_text() == f"{info.sha256}  demo.tar.zst\n"
    assert (unpacked(info.path, tmp_path / "out") / "demo" / "a").read_bytes() == b"2"


def test_large_file_is_streamed(tmp_path):
    big = tmp_path / "big.log"
    with big.open("wb") as stream:
        stream.truncate(96 << 20)
    code = (
        "import sys, pathlib, resource; from servemark.archive.seal import seal;"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "seal({'big.log': pathlib.Path(sys.argv[1])}, pathlib.Path(sys.argv[2]));"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "print(used.ru_maxrss - start, used.ru_utime + used.ru_stime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, big, tmp_path / "demo.tar.zst"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(LIBRARY)},
    )  # fmt: skip
    grown_kib, cpu_s = done.stdout.split()
    assert int(grown_kib) < 32 << 10
    assert float(cpu_s) < 15


def test_zstandard_frame_states_the_content_size(tmp_path):
    path = seal(write(tmp_path / "in"), tmp_path / "demo.tar.zst").path
    size = zstandard.frame_content_size(path.read_bytes()[:64])
    assert size == len(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    assert size % tarfile.RECORDSIZE == 0
