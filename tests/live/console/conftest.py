"""The fixtures of ``browsing``."""

from tests.live.console.browsing import axe, chrome, running, tab  # noqa: F401
