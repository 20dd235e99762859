"""The report's HTML as a test reads it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from servemark.report import packed, page

CELL_ENDS = ("th", "td", "tr", "thead", "tbody", "table")
"""The end tags that end a cell: HTML allows to omit the cell's own."""


class Document(HTMLParser):
    """Elements with attributes, visible text, and the text of each script and style."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.raw: list[tuple[str, dict, str]] = []
        self.text = ""
        self._in: tuple[str, dict] | None = None
        self._section = ""
        self._rows: list[tuple[str, list[str]]] = []
        self._in_cell = self._head = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._in = (tag, dict(attributes))
        elif tag == "section":
            self._section = dict(attributes)["id"]
        elif tag == "thead":
            self._head = True
        elif tag == "tr":
            self._rows.append(("" if self._head else self._section, []))
        elif tag in ("th", "td"):
            self._rows[-1][1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if self._in and tag == self._in[0]:
            self._in = None
        elif tag in CELL_ENDS:
            self._in_cell = False
        if tag == "thead":
            self._head = False

    def handle_data(self, data):
        if self._in:
            self.raw.append((*self._in, data))
        else:
            self.text += data
            if self._in_cell:
                self._rows[-1][1][-1] += data

    def cells(self, section: str) -> list[tuple[str, ...]]:
        """The rows of a section's tables, without the heads."""
        return [tuple(" ".join(cell.split()) for cell in row) for name, row in self._rows if name == section]

    def json(self, identifier: str) -> Any:
        """The content of a block of JSON."""
        (text,) = (text for _, attributes, text in self.raw if attributes.get("id") == identifier)
        return json.loads(text)

    @property
    def block(self) -> dict[str, Any]:
        """The data block, with a dictionary for each row of its tables."""
        return packed.unpack(self.json(page.BLOCK_ID))

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


class Tables(HTMLParser):
    """The tables by caption: rows of (text, columns that the cell spans)."""

    def __init__(self, html: str):
        super().__init__()
        self.found: dict[str, list[list[tuple[str, int]]]] = {}
        self._caption: str | None = None
        self._rows: list[list[tuple[str, int]]] = []
        self._cell: str | None = None
        self._span = 1
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag in ("th", "td", "tr"):
            self._end_cell()
        if tag == "table":
            self._rows = []
        elif tag == "caption":
            self._caption = ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._cell, self._span = "", int(dict(attributes).get("colspan", 1))

    def handle_endtag(self, tag):
        if tag == "caption":
            self.found[self._caption or ""] = self._rows
            self._caption = None
        elif tag in CELL_ENDS:
            self._end_cell()

    def _end_cell(self):
        if self._cell is not None:
            self._rows[-1].append((re.sub(r"[ \n]+", " ", self._cell).strip(" "), self._span))
            self._cell = None

    def handle_data(self, data):
        if self._caption is not None:
            self._caption += data
        elif self._cell is not None:
            self._cell += data
