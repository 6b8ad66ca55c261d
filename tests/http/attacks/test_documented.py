"""SECURITY.rst names only tests that exist, and names all modules of attacks."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import TestCase

TESTS = Path(__file__).parents[2]
SECURITY = TESTS.parent / "SECURITY.rst"
NAMED = re.compile(r"``((?:\w+/)?test_\w+)``")


class Documented(TestCase):
    def test_every_test_that_is_named_exists(self) -> None:
        # Not as a mapping: modules of tests/unit and tests/live may have the same name.
        modules = [
            (f"{path.parent.name}/{path.stem}", path.read_text("utf-8")) for path in TESTS.rglob("test_*.py")
        ]
        tests = {name for _, text in modules for name in re.findall(r"def (test_\w+)\(", text)}
        named = set(NAMED.findall(SECURITY.read_text("utf-8")))
        self.assertGreater(len(named), 30)
        self.assertEqual(named - tests - {module for module, _ in modules}, set())
        for module, text in modules:
            if module.startswith("attacks/") and module != "attacks/test_documented":
                shown = {module, *re.findall(r"def (test_\w+)\(", text)}
                self.assertTrue(shown & named, f"SECURITY.rst says nothing of {module}")
