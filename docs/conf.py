"""How Sphinx makes the site of the documentation: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# For a build without an installed package, and for the extensions of this folder.
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

from project_service import __version__  # noqa: E402  # the line above lets it be imported

project = "project-service"
version = release = __version__
extensions = ["generated_reference", "linked_names"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"project-service {version}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

language = "en"
nitpicky = True
smartquotes = False  # they would make one dash of the two of an option
highlight_language = "none"  # a block says its language, or is shown as it is
# Blocks of HTTP and JSON leave out what does not matter ("…", the version of HTTP), which their lexers do not know.
suppress_warnings = ["misc.highlighting_failure"]
