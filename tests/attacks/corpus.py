"""Hostile and odd HTTP/1.1, byte for byte, with the outcomes that are allowed. Pure data.

Sections are RFC 9112's unless another RFC is named. The application that the corpus is meant for is
``tests.attacks.app``: ``/echo`` answers 200 and ``METHOD target|body|X-Mark``, ``/early`` 200 and ``EARLY`` without
reading the body, ``/hidden`` 200 and ``HIDDEN``; anything else is 404.
"""

from __future__ import annotations

from tests.attacks.bodies import CHUNKS, SMUGGLING
from tests.attacks.cases import Case
from tests.attacks.heads import CONNECTIONS, HEADERS, LINES

CORPUS: list[Case] = [*SMUGGLING, *CHUNKS, *HEADERS, *LINES, *CONNECTIONS]
