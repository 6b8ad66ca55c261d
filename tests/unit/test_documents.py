"""All pages of the documentation are valid reStructuredText, without warnings."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from docutils.core import publish_doctree
from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "newsfragments")
# From its least level on: a line that looks like an item of a list is only that.
SETTINGS = {"report_level": 1, "halt_level": 5, "_disable_config": True}


def remarks(text: str, path: Path) -> str:
    """The warnings of docutils about a page, with file and line."""
    said = StringIO()
    publish_doctree(text, str(path), settings_overrides={**SETTINGS, "warning_stream": said})
    return said.getvalue()


class Documents(TestCase):
    def test_every_page_is_read_without_a_remark(self) -> None:
        pages = [page for folder in FOLDERS for page in sorted(folder.glob("*.rst"))]
        for name in ("README.rst", "SECURITY.rst", "CONTRIBUTING.rst", "docs/operations.rst"):
            self.assertIn(ROOT / name, pages)
        self.assertEqual("".join(remarks(page.read_text("utf-8"), page) for page in pages), "")

    def test_what_is_not_meant_is_remarked_upon(self) -> None:
        slips = {
            "A longer title\n====\n": "Title underline too short",
            ":ref:`elsewhere`\n": 'Unknown interpreted text role "ref"',
            "a `link_ that is open\n": "Unknown target name",
            ".. code-block:: nonsense\n\n   x\n": "No Pygments lexer found",
            "204. 404 otherwise.\n": "Enumerated list",
        }
        for text, remark in slips.items():
            self.assertIn(remark, remarks(text, ROOT / "docs" / "slip.rst"))
