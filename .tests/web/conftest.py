"""The report in headless Chromium, without a network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@dataclass
class Seen:
    """The report's errors, and the addresses that it requested."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@dataclass
class Visit:
    page: object
    seen: Seen
    url: str


def _need(condition: bool, why: str) -> None:
    if not condition:
        if os.environ.get("SERVEMARK_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{why}, and SERVEMARK_REQUIRE_BROWSER=1 asks for it")
        pytest.skip(why)


@pytest.fixture
def shoot() -> Callable[..., None]:
    """Return ``shoot(part, name, **options)``, which takes a screenshot of a page or an element.

    It writes to the folder in SERVEMARK_SCREENSHOTS, and does nothing without this variable: an image of a whole report takes seconds.
    """
    folder = os.environ.get("SERVEMARK_SCREENSHOTS")

    def take(part: object, name: str, **options: object) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            part.screenshot(path=Path(folder) / name, **options)

    return take


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return a browser for the tests of a module: its start takes longer than many a test."""
    _need(CHROMIUM.exists(), f"{CHROMIUM} is not installed")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _need(False, "playwright is not installed in this environment")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=str(CHROMIUM),
                headless=True,
                timeout=120_000,
                args=list(ARGUMENTS),
                env={**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))},
            )
        except Error as error:
            _need(False, f"{CHROMIUM} does not start: {' '.join(str(error).split())[:300]}")
            raise
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: object, tmp_path: Path) -> Iterator:
    """Return ``visit(html, **context options)``, which opens a report by file:// in a context of its own and waits for its plots."""
    contexts = []

    def open_page(html: str, **options: object) -> Visit:
        file = tmp_path / f"report-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(120_000)
        page = context.new_page()
        seen = Seen()
        page.on("console", lambda message: seen.complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(f"page error: {error}"))
        page.on("dialog", lambda dialog: (seen.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: seen.requests.append(request.url))
        context.route(re.compile("^(?!file:)"), lambda route: route.abort())
        page.add_init_script(
            "addEventListener('securitypolicyviolation', "
            "event => console.error(`CSP ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"
        )
        page.goto(file.as_uri(), timeout=120_000)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn=true]", timeout=120_000)
        return Visit(page, seen, file.as_uri())

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def axe() -> Callable[[object], list[str]]:
    """Return ``axe(page)``, which lists axe-core's violations on the current page: rule, number of places, the first place."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        _need(False, "axe-playwright-python is not installed in this environment")

    def violations(page: object) -> list[str]:
        found = Axe().run(page).response["violations"]
        return [f"{item['id']} ({len(item['nodes'])}): {item['nodes'][0]['html'][:200]}" for item in found]

    return violations
