"""Files are compared with the manifest, and the archive with the digest next to it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.archived_run import wrong
from servemark.archive import seal as archive
from servemark.verification.unpack import unpacked


def put(
    path: Path,
    change: Callable[[dict[str, bytes]], object] = lambda content: None,
    touch: Callable[[tarfile.TarInfo], object] = lambda header: None,
) -> Path:
    """Change the files in a sealed archive, or their tar headers, without sealing it again."""
    with unpacked(path) as found:
        content = {name: (found.folder / name).read_bytes() for name in found.digests}
        change(content)
        tarred = io.BytesIO()
        with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, data in content.items():
                header = archive.header(f"{found.top}/{name}", len(data))
                touch(header)
                tar.addfile(header, io.BytesIO(data))
        packed = archive.zstandard.ZstdCompressor().compress(tarred.getvalue())
    path.write_bytes(packed)
    path.with_name(path.name + ".sha256").unlink()
    return path


def test_changed_missing_and_extra_files_are_named(run):
    def change(content: dict[str, bytes]) -> None:
        content["logs/measure/plain/chat-c1-r1.log"] += b"more\n"
        del content["deployments/plain/stopped.json"]
        content["logs/extra\u202e.log"] = b""

    found = wrong(put(run.seal(), change))
    assert [line.partition(";")[0] for line in found[:3]] == [
        "deployments/plain/stopped.json: missing",
        "logs/extra?.log: extra",
        "logs/measure/plain/chat-c1-r1.log: changed",
    ]


def test_missing_or_malformed_manifest_is_named(run):
    path = run.seal()
    kept = path.read_bytes()
    assert any(line.startswith(f"{archive.MANIFEST} is missing") for line in wrong(put(path, lambda c: c.pop(archive.MANIFEST))))
    path.write_bytes(kept)
    path.with_name(path.name + ".sha256").write_text("none\n")

    def nonsense(content: dict[str, bytes]) -> None:
        first = content[archive.MANIFEST].splitlines()[0]
        content[archive.MANIFEST] += b"zzz  config.json\n" + first + b"\n"

    found = wrong(put(path, nonsense))
    assert len(found) == 3 and all(line.startswith(f"{archive.MANIFEST}, line ") for line in found[:2])
    assert found[2].startswith("ro-crate-metadata.json: manifest-sha256.txt")


def test_digest_next_to_archive_is_compared(run):
    path = run.seal()
    beside = path.with_name(path.name + ".sha256")
    beside.write_text(f"{'0' * 64}  {path.name}\n")
    (line,) = wrong(path)
    assert beside.name in line and "0" * 64 in line
    beside.write_text("nonsense")
    assert [line.split()[0] for line in wrong(path)] == [beside.name]


@pytest.mark.parametrize(
    ("field", "value"),
    [("mode", 0o4755), ("uid", 1000), ("gid", 1000), ("mtime", 1), ("uname", "eve"), ("pax_headers", {"comment": "x"})],
)
def test_changed_tar_header_is_named(run, field, value):
    def touch(header: tarfile.TarInfo) -> None:
        if header.name.endswith("/config.json"):
            setattr(header, field, value)

    (line,) = wrong(put(run.seal(), touch=touch))
    assert line.startswith("1 tar header changed: config.json (") and ("comment" if field == "pax_headers" else field) in line


def test_changed_files_come_before_one_line_for_all_changed_tar_headers(run):
    path, name = run.seal(), "logs/measure/plain/chat-c1-r1.log"

    def change(content: dict[str, bytes]) -> None:
        content[name] += b"more\n"

    first, second, *others = wrong(put(path, change, lambda header: setattr(header, "uid", 1000)))
    with unpacked(path) as found:
        names = list(found.digests)
    assert first.startswith(f"{name}: changed;")
    assert second.startswith(f"{len(names)} tar headers changed: ") and second.endswith(f" and {len(names) - 3} more.")
    assert [one in second for one in names[:4]] == [True, True, True, False]
    assert not any("tar header" in line for line in others)


def test_folder_in_the_tar_is_named(run):
    def folder(header: tarfile.TarInfo) -> None:
        if header.name.endswith("README.txt"):
            header.type = tarfile.DIRTYPE
            header.size = 0

    assert any("README.txt (" in line and "type" in line for line in wrong(put(run.seal(), touch=folder)))
