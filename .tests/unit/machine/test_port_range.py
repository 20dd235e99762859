"""The range of ports that the security page names for firewalls."""

from __future__ import annotations

import re

from builders.paths import ROOT
from servemark.machine import network


def test_security_page_names_the_range_of_the_code():
    text = " ".join((ROOT / "docs" / "security.md").read_text().split())
    first, last = re.search(r"ports that servemark chooses are from (\d+) to (\d+):", text).groups()
    assert range(int(first), int(last) + 1) == network.PORTS
