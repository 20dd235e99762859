"""``topology: auto``: the word alone, or a mapping."""

from __future__ import annotations

import pytest
from pydantic_core import PydanticCustomError

from servemark.config.topology import AutomaticTopology, automatic


def test_auto_is_a_topology_and_another_text_is_refused_with_the_word():
    assert isinstance(automatic("auto"), AutomaticTopology)
    assert automatic({"nodes": 2}) == {"nodes": 2}
    with pytest.raises(PydanticCustomError) as refused:
        automatic("aut")
    assert refused.value.context["allowed"] == ["auto"]
