"""Every link in the documents has a target, every path that they name exists, and the site has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from builders.paths import ROOT
from servemark.config.load import load

READMES = [ROOT / folder / "README.md" for folder in ("config", "envs", "profiles", "workflow")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *READMES])
TOP = ("config", "docs", "envs", "profiles", "workflow", "plugins", ".tests", ".ci", ".github")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = target.partition("#")
        if re.match(r"\w+:", name):
            continue
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (heading and heading not in anchors(file)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_named_in_documents_exists(page):
    below, source = "|".join(map(re.escape, TOP)), r"[\w.-]+(?:/[\w.-]+)*/[\w-]+\.(?:py|md|in|lock)"
    named = re.findall(rf"`((?:{below})/[\w./-]+|{source})`", page.read_text())
    # Paths may be relative to the library. Names in capitals and `ourcluster` are placeholders.
    roots = (page.parent, ROOT, ROOT / "workflow" / "lib" / "servemark")
    real = [name for name in named if not re.search(r"/[A-Z]+\b(?!\.md)|ourcluster", name)]
    assert [name for name in real if not any((root / name).exists() for root in roots)] == []


def test_configurations_in_documents_are_valid(tmp_path):
    blocks = [block for page in PAGES for block in re.findall(r"^```yaml\n(run: .*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)]
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        assert load(path).deployments
    assert len(blocks) >= 4


def test_the_site_has_every_page_and_no_other():
    def files(part):
        return (
            [part]
            if isinstance(part, str)
            else [name for one in (part.values() if isinstance(part, dict) else part) for name in files(one)]
        )

    listed = files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_first_page_links_to_every_how_to():
    first = (ROOT / "docs/index.md").read_text()
    assert [page.name for page in (ROOT / "docs/how-to").glob("*.md") if f"(how-to/{page.name})" not in first] == []


def test_site_loads_nothing_from_other_hosts():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False and settings["strict"] is True
    assert [name for name in settings["extra"]["polyfills"] if not (ROOT / "docs" / name).is_file()] == []
