"""All error codes are in the documentation, since they are part of the interface."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[3]
# The module that raises them, and the page that lists them beside the shared ones.
PAGES = {"errors.py": "errors", "http/health.py": "errors", "auth": "auth", "storage": "storage"}
MAKERS = ("ApiError", "bad_request", "_unavailable", "_challenged")


def codes(path: Path) -> set[str]:
    """The literal codes that are given to ``ApiError`` and its shorthands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in MAKERS:
            texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            found.update(text for text in texts if isinstance(text, str) and " " not in text)
    return found


class ErrorCodes(TestCase):
    def test_each_code_is_documented(self) -> None:
        shared = (ROOT / "docs" / "errors.rst").read_text("utf-8")
        seen: set[str] = set()
        for place, page in PAGES.items():
            path = ROOT / "project_service" / place
            text = shared + (ROOT / "docs" / f"{page}.rst").read_text("utf-8")
            for file in path.rglob("*.py") if path.is_dir() else [path]:
                for code in codes(file):
                    seen.add(code)
                    self.assertIn(f"``{code}``", text, f"{file.name}: {code}")
        self.assertLessEqual({"not_found", "email_taken", "object_not_found", "database_unavailable"}, seen)
