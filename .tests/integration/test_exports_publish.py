"""``exports`` and ``publish`` after a finished run: nothing is measured again, the archive holds the exports, the command runs once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

from integration.harness import RUN, Checkout
from servemark import verification

PUBLISH = "open('calls', 'a').write(sys.argv[1] + '\\n'); sys.exit(int(open('code').read()))"


def calls(checkout: Checkout) -> list[str]:
    path = checkout.path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_exports_and_publish_measure_nothing_and_publish_runs_once(measured: Checkout) -> None:
    before = measured.digests("a") | measured.digests("b")
    measured.config["exports"] = ["inferencex", "llmd-br-0.2.1"]
    done = measured.run()
    assert done.rc == 0, done.text
    assert measured.digests("a") | measured.digests("b") == before
    assert measured.foretold() == set()
    archived = measured.archived()
    assert len(json.loads(archived["exports/inferencex/results.json"])) == 4
    assert "exports/llmd-br-0.2.1/a/chat-c1-r1.json" in archived
    assert verification.verify(measured.results / "archive" / f"{RUN}.tar.zst").wrong == ()

    # A failing command fails the run and loses nothing; the next run repeats only the command.
    (measured.path / "code").write_text("7")
    measured.config["publish"] = [sys.executable, "-c", f"import sys; {PUBLISH}", "{archive}"]
    failed = measured.run()
    assert failed.rc == 1 and "exit code 7" in failed.text, failed.text
    sealed = (measured.results / "archive" / f"{RUN}.tar.zst").read_bytes()
    assert measured.record("check.json")["holes"] == []
    assert len(pd.read_parquet(measured.results / "measurements.parquet")) == 4
    assert not (measured.results / "published.json").exists()
    assert measured.foretold() == {"publish_archive"}
    (measured.path / "code").write_text("0")
    done = measured.run()
    assert done.rc == 0, done.text
    archive = measured.path / "results" / RUN / "archive" / f"{RUN}.tar.zst"
    assert archive.read_bytes() == sealed
    assert calls(measured) == [str(archive)] * 2
    assert measured.record("published.json")["archive_sha256"] == Path(f"{archive}.sha256").read_text().split()[0]

    # The command runs once for each sealing, and not because a file looks newer.
    archive.touch()
    Path(f"{archive}.sha256").touch()
    assert "publish_archive" not in measured.foretold()
    archive.unlink()
    done = measured.run()
    assert done.rc == 0, done.text
    assert archive.read_bytes() == sealed and calls(measured) == [str(archive)] * 3
    assert measured.digests("a") | measured.digests("b") == before

    # Without the key, exports of the earlier configuration leave the archive.
    measured.config["exports"] = ["inferencex"]
    done = measured.run()
    assert done.rc == 0, done.text
    assert {name.split("/")[1] for name in measured.archived() if name.startswith("exports/")} == {"inferencex"}
    assert calls(measured) == [str(archive)] * 4, "another archive is published"
