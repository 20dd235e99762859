"""Code that decides how a load point is served and measured does not change within one format of ledger keys, unless results stay the same.

``measurement/formats.yaml`` lists the digests of this code for each ``FORMAT`` of ``measurement/key.py``. A new digest fails here: either
results change, and ``FORMAT`` must be raised, or they do not, and the new digest needs a line with the reason.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import servemark
from servemark.measurement import key

LIBRARY = Path(servemark.__file__).parent
TABLE = LIBRARY / "measurement" / "formats.yaml"
CODE = (
    "in_model_env/bench_client.py",
    "in_model_env/run_clients.py",
    "in_model_env/client_server.py",
    "in_model_env/random_weights/servemark_random_weights.py",
    "deployment/client.py",
    "measurement/merge.py",
    "launch/command_lines.py:bench",
    "launch/command_lines.py:option_arguments",
    "records/load_point.py:RandomPrompts",
    "records/load_point.py:StagedPrompts",
    "records/load_point.py:PrefixPrompts",
    "launch/command_lines.py:serve",
    "launch/command_lines.py:server_environment",
    "launch/command_lines.py:KEEP_ALIVE_S",
    "launch/command_lines.py:router",
    "records/topology.py:ROUTER_POLICIES",
    "deployment/executors/mp.py",
    "deployment/executors/ray.py",
)
"""Files below the library, or FILE:NAME for one function, class or value. First the client, then what servers always get."""
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
# Python 3.12 splits a formatted text into several tokens.
_BEGIN, _END = (getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END"))


def source(place: str) -> str:
    """Return the text of a file, or of one function or class in it."""
    file, _, name = place.partition(":")
    text = (LIBRARY / file).read_text(encoding="utf-8")
    if not name:
        return text
    (node,) = [node for node in ast.parse(text).body if name in _names(node)]
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]) + "\n"


def _names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else [node]
    return [str(getattr(target, "id", None) or getattr(target, "name", None)) for target in targets]


def words(text: str) -> Iterator[str]:
    """Yield the tokens of a source, the same with every Python: without comments, blank lines and width of indents."""
    lines, depth, begin = text.splitlines(keepends=True), 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == _BEGIN:
            depth, begin = depth + 1, begin if depth else token.start
        elif token.type == _END:
            depth -= 1
            if depth == 0:
                yield between(lines, begin, token.end)
        elif depth == 0 and token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            yield f"<{token.type}>"
        elif depth == 0 and token.type not in _LAYOUT:
            yield token.string


def between(lines: list[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the text between two positions (line from 1, column from 0)."""
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])


def digest(text: str) -> str:
    """Return the sha256 of a source without comments, docstrings and layout."""
    statements: list[list[str]] = [[]]
    for word in words(text):
        statements[-1].append(word)
        if word == f"<{tokenize.NEWLINE}>":
            statements.append([])
    marks = {f"<{kind}>" for kind in (tokenize.INDENT, tokenize.DEDENT)}
    kept: list[str] = []
    for statement in statements:
        code = [word for word in statement if word not in marks]
        # A text that stands alone is a docstring.
        alone = len(code) == 2 and code[0].endswith(('"', "'"))
        kept += [word for word in statement if word in marks] if alone else statement
    names = {f"<{kind}>": name for kind, name in ((tokenize.NEWLINE, "<new line>"), (tokenize.INDENT, "<in>"), (tokenize.DEDENT, "<out>"))}
    return hashlib.sha256("\0".join(names.get(word, word) for word in kept).encode()).hexdigest()


@pytest.mark.parametrize("place", CODE)
def test_changed_code_raises_format_or_has_a_reason(place):
    found = digest(source(place))
    known = yaml.safe_load(TABLE.read_text()).get(key.FORMAT, {}).get(place, {})
    assert found in known, (
        f"{place} was changed. If results of a load point may change, raise FORMAT in measurement/key.py. "
        f"If not, add to {TABLE.name} under {key.FORMAT}: {place}: `{found}: why results do not change`"
    )


def test_every_digest_has_a_format_a_place_and_a_reason():
    table = yaml.safe_load(TABLE.read_text())
    assert max(table) == key.FORMAT
    assert set(table[key.FORMAT]) == set(CODE)
    for places in table.values():
        assert set(places) <= set(CODE)
        assert all(len(found) == 64 and len(why.split()) > 1 for digests in places.values() for found, why in digests.items())


SOURCE = 'NAME = f"{1 + 1:>{3}} a"\n"""About NAME."""\n\ndef one(a, b):\n    """Do it."""\n    return a + b  # comment\n'


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ('NAME = f"{1 + 1:>{3}} a"\n"""Other."""\n# More.\ndef one(a,\n        b):\n  """Do\n  it."""\n\n  return a + b\n', True),
        (SOURCE.replace("a + b", "a - b"), False),
        (SOURCE.replace("{3}} a", "{4}} a"), False),
        (SOURCE.replace("{3}} a", "{3}} b"), False),
        (SOURCE + "    return 1\n", False),
        (SOURCE + "return 1\n", False),
    ],
)
def test_digest_changes_with_code_not_with_words_about_it(changed, same):
    assert (digest(changed) == digest(SOURCE)) is same


def test_digest_is_the_same_with_every_python():
    assert digest(SOURCE) == "68555bffade9e9c4782d729dfb30c74de17f5f0969b8003f15ca8d5e9c7c2ac4"
