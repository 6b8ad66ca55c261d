"""The fixtures of ``browsing`` and ``alone``."""

from tests.live.console.alone import address  # noqa: F401
from tests.live.console.browsing import axe, chrome, running, tab  # noqa: F401
