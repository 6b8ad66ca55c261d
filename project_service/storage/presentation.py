"""How a browser is to show an object: its type, its name, its sandbox."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote

from project_service.errors import Headers
from project_service.storage import keys

# A stored page may neither run script nor load anything but data from this site. What is to be saved has it too: a
# browser, an embedding app or a proxy may show it all the same.
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"

# Browsers must take the content type as it is sent, whatever the bytes look like.
NO_SNIFFING = ("X-Content-Type-Options", "nosniff")

# A page that is isolated (``Cross-Origin-Embedder-Policy: require-corp``) may show the object too. It is sent where
# CORS lets pages of every origin read the object anyway.
ANY_ORIGIN = ("Cross-Origin-Resource-Policy", "cross-origin")

# Characters of a key that no file name has, see ``keys.TURNING``.
_TURNING = re.compile(f"[{keys.TURNING}]")
# Characters replaced in the plain file name: all but printable ASCII, and those with a meaning within quotes.
_NOT_PLAIN = re.compile(r'[^ -~]|["\\%]')
# What needs no quotes (RFC 9110 section 5.6.2).
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# Types that a public page shows in the browser. Everything else is saved.
_SHOWN = ("audio/", "image/", "video/")
# Browsers show a PDF in a viewer of their own, where it cannot act as the site, and none within a sandbox.
_PDF = "application/pdf"
# Browsers take the parts out of these, and let them act as pages or files of this site.
_COMPOSITE = ("multipart/", "message/")


def content_disposition(key: str, inline: bool, unquoted: bool = False) -> str:
    """RFC 6266: a plain file name for old readers, and the real one. ``unquoted``: the plain one without quotes, if
    it needs none."""
    name = _TURNING.sub("_", key.rsplit("/", 1)[-1])
    plain = _NOT_PLAIN.sub("_", name)
    shown = plain if unquoted and _TOKEN.fullmatch(plain) else f'"{plain}"'
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename={shown}; filename*=UTF-8''{quote(name)}"


# Cached, because the same objects are requested again and again.
@lru_cache(maxsize=1024)
def presentation(
    key: str,
    content_type: str,
    inline: bool | None,
    filename: str = "",
    language: str | None = None,
    unquoted: bool = False,
) -> Headers:
    """How a browser is to show the object of ``key``: its type, its language, its file name, and the sandbox.

    With ``inline`` None its type decides, and a PDF that is shown is not in the sandbox. ``filename`` "": the key's
    last segment; ``unquoted`` as in ``content_disposition``. What consists of parts with types of their own is sent
    as bytes of no type.
    """
    # What browsers do with the very name that they are sent: another name of PDF is none to them.
    kind = keys.essence(content_type)
    shown = kind == _PDF or kind.startswith(_SHOWN) if inline is None else inline
    headers: Headers = (
        ("Content-Type", keys.DEFAULT_CONTENT_TYPE if kind.startswith(_COMPOSITE) else content_type),
        ("Content-Disposition", content_disposition(filename or key, shown, unquoted)),
        NO_SNIFFING,
        *(() if language is None else (("Content-Language", language),)),
    )
    if inline is None and shown and kind == _PDF:
        return headers
    return (*headers, ("Content-Security-Policy", SANDBOX))
