"""All pages of the documentation are valid reStructuredText, without warnings, and no news fragment is left out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from io import StringIO
from pathlib import Path, PurePath

from docutils.core import publish_doctree
from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[3]
NEWS = ROOT / "newsfragments"
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
SECTIONS = {section["path"] for section in TOWNCRIER["section"]}
FOLDERS = (ROOT, ROOT / "docs", ROOT / "tests", *(NEWS / section for section in SECTIONS))
# From its least level on: a line that looks like an item of a list is only that.
SETTINGS = {"report_level": 1, "halt_level": 5, "_disable_config": True}


def remarks(text: str, path: Path) -> str:
    """The warnings of docutils about a page, with file and line."""
    said = StringIO()
    publish_doctree(text, str(path), settings_overrides={**SETTINGS, "warning_stream": said})
    return said.getvalue()


def astray(fragments: Iterable[PurePath]) -> list[str]:
    """Those that towncrier would leave out, or refuse, of paths relative to the folder of the news fragments."""
    types = "|".join(type_["directory"] for type_ in TOWNCRIER["type"])
    name = re.compile(rf"[^.]+\.({types})\.rst")
    return [
        str(fragment)
        for fragment in fragments
        if str(fragment.parent) not in SECTIONS or not name.fullmatch(fragment.name)
    ]


class Documents(TestCase):
    def test_every_page_is_read_without_a_warning(self) -> None:
        pages = [page for folder in FOLDERS for page in sorted(folder.glob("*.rst"))]
        for name in (
            "README.rst",
            "SECURITY.rst",
            "CONTRIBUTING.rst",
            "docs/operations.rst",
            "tests/README.rst",
        ):
            self.assertIn(ROOT / name, pages)
        self.assertEqual("".join(remarks(page.read_text("utf-8"), page) for page in pages), "")

    def test_the_test_itself_notices_common_mistakes(self) -> None:
        slips = {
            "A longer title\n====\n": "Title underline too short",
            ":ref:`elsewhere`\n": 'Unknown interpreted text role "ref"',
            "a `link_ that is open\n": "Unknown target name",
            ".. code-block:: nonsense\n\n   x\n": "No Pygments lexer found",
            "204. 404 otherwise.\n": "Enumerated list",
        }
        for text, remark in slips.items():
            self.assertIn(remark, remarks(text, ROOT / "docs" / "slip.rst"))


class News(TestCase):
    def test_every_fragment_is_in_a_section_and_of_a_known_type(self) -> None:
        template = ROOT / TOWNCRIER["template"]
        files = [path for path in sorted(NEWS.rglob("*")) if path.is_file() and path != template]
        self.assertEqual(astray(path.relative_to(NEWS) for path in files), [])

    def test_fragments_that_would_be_left_out_are_found(self) -> None:
        wrong = [
            "a.bugfix.rst",
            "nowhere/a.bugfix.rst",
            "http/more/a.bugfix.rst",
            "http/a.fix.rst",
            "http/a.bugfix",
        ]
        right = ["http/a.bugfix.rst", "auth/a.security.rst"]
        self.assertEqual(astray(PurePath(path) for path in wrong + right), wrong)
