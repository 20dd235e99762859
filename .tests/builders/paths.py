"""Paths in the checkout that tests read."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FIXTURES = TESTS / "fixtures"
ROOT = TESTS.parent
LIBRARY = ROOT / "workflow" / "lib"
