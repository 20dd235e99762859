"""The figures that a report page states: the data of its plots, and the cells of its tables and cards as a reader sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

SECTIONS = (
    *("headline", "comparison", "router", "figures", "verdicts", "attempts"),
    *("startup", "timeline", "cluster", "memory"),
)
"""Those that state figures; the others hold names, digests and explanations."""
_DRAWINGS = "drawings"


@dataclass(frozen=True)
class Line:
    """A row of a table or a paragraph of a card. ``about`` is the heading it stands under; ``head``: it names columns."""

    section: str
    about: str
    cells: tuple[str, ...]
    head: bool = False


@dataclass
class Page:
    """What a page states. ``drawings`` is None where there is none that can be read; ``version`` wrote the page.

    ``whole``: it shows every measurement. ``panels`` are the plots' names as the page offers them, by the id that the drawings use,
    or their number as load-3, point-7.
    """

    lines: list[Line] = field(default_factory=list)
    panels: dict[str, str] = field(default_factory=dict)
    drawings: dict[str, Any] | None = None
    version: str = ""
    whole: bool = True


def read_page(html: str) -> Page:
    """The stated figures of a page, in their order; what the page's scripts do is not looked at."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    try:
        drawings = json.loads("".join(reader.drawings))
    except (ValueError, RecursionError):
        drawings = None
    reader.page.drawings = drawings if isinstance(drawings, dict) else None
    return reader.page


class _Reader(HTMLParser):
    """Collects cells (th, td) by row, and headings and paragraphs of cards."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.drawings: list[str] = []
        self._section = ""
        self._heading = self._about = self._option = ""
        self._cells: list[str] | None = None
        self._text: list[str] | None = None
        self._text_of = ""
        self._in_drawings = self._head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        match tag:
            case "meta" if given.get("name") == "generator":
                self.page.version = (given.get("content") or "").removeprefix("servemark ")
            case "meta" if given.get("name") == "servemark-shows":
                self.page.whole = given.get("content") != "part"
            case "section":
                self._section, self._heading, self._about = given.get("id") or "", "", ""
            case "script":
                self._in_drawings = given.get("id") == _DRAWINGS
            case "thead":
                self._head = True
            case "option":
                self._option = given.get("value") or ""
                self._begin(tag)
            case "span" if given.get("class") == "range" and self._text is not None:
                self._text.append(" ")
            case "tr":
                self._cells = []
            case "p" if given.get("class") == "lead":
                self._begin(tag)
            case "th" | "td" | "h3" | "h4" if self._section in SECTIONS:
                self._begin(tag)
            case "p" if self._section == "headline" and self._cells is None:
                self._begin(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_drawings = False
        elif tag == "section":
            self._section = ""
        elif tag == "thead":
            self._head = False
        elif tag == "tr":
            if self._cells and self._section in SECTIONS:
                self._line(self._cells)
            self._cells = None
        elif tag == self._text_of and self._text is not None:
            text = " ".join("".join(self._text).split())
            self._text, self._text_of = None, ""
            self._end(tag, text)

    def handle_data(self, data: str) -> None:
        if self._in_drawings:
            self.drawings.append(data)
        elif self._text is not None:
            self._text.append(data)

    def _begin(self, tag: str) -> None:
        if self._text is None:
            self._text, self._text_of = [], tag

    def _end(self, tag: str, text: str) -> None:
        if tag == "option":
            self.page.panels[self._option] = text
        elif tag == "h3":
            self._heading, self._about = text, text
        elif tag == "h4":
            self._about = f"{text}, {self._heading}" if self._heading else text
        elif tag == "p":
            self._line([text])
        elif self._cells is not None:
            self._cells.append(text)

    def _line(self, cells: list[str]) -> None:
        self.page.lines.append(Line(self._section or "summary", self._about, tuple(cells), self._head))
