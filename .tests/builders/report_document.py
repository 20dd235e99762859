"""The page as a test reads it."""

from __future__ import annotations

from html.parser import HTMLParser


class Document(HTMLParser):
    """Elements with attributes, visible text, and the text of each script and style."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.raw: list[tuple[str, dict, str]] = []
        self.text = ""
        self._in: tuple[str, dict] | None = None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._in = (tag, dict(attributes))

    def handle_endtag(self, tag):
        if self._in and tag == self._in[0]:
            self._in = None

    def handle_data(self, data):
        if self._in:
            self.raw.append((*self._in, data))
        else:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())
