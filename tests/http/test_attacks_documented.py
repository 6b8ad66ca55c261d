"""SECURITY.rst names only tests that exist, and every module of attacks."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import TestCase

TESTS = Path(__file__).parents[1]
SECURITY = TESTS.parent / "SECURITY.rst"
NAMED = re.compile(r"``(test_\w+)(?:\.(test_\w+))?``")


class Documented(TestCase):
    def test_every_test_that_is_named_exists(self) -> None:
        modules = {path.stem: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
        named = NAMED.findall(SECURITY.read_text("utf-8"))
        self.assertGreater(len(named), 30)
        for module, test in named:
            self.assertIn(module, modules)
            self.assertTrue(not test or re.search(rf"def {test}\(", modules[module]), f"{module}.{test}")
        attacks = {module for module in modules if module.startswith("test_attacks_")}
        self.assertLessEqual(attacks - {Path(__file__).stem}, {module for module, _ in named})
