"""``Content-Disposition``, and the other headers that keep a stored page from acting as the site. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from project_service.errors import Headers

# A stored page that is shown inline may neither run script nor load anything but data from this site.
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"

# Browsers must take the content type as it is sent, whatever the bytes look like.
NO_SNIFFING = ("X-Content-Type-Options", "nosniff")

# A page that is isolated (``Cross-Origin-Embedder-Policy: require-corp``) may show the object too. It is sent where
# CORS lets pages of every origin read the object anyway.
ANY_ORIGIN = ("Cross-Origin-Resource-Policy", "cross-origin")

# Characters replaced in the plain file name: all but printable ASCII, and those with a meaning within quotes.
_NOT_PLAIN = re.compile(r'[^ -~]|["\\%]')
# A quoted string. One without an end reaches to the end of the header: trying again from each quote would take long.
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*+["\\]?')
_EXTENDED = re.compile(r";\s*filename\*\s*=\s*utf-8'[^';]*'([^\s;\"]+)", re.ASCII | re.IGNORECASE)


def content_disposition(key: str, inline: bool) -> str:
    """RFC 6266: a plain file name for old readers, and the real one."""
    name = key.rsplit("/", 1)[-1]
    plain = _NOT_PLAIN.sub("_", name)
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"


# Cached, because the same objects are asked for again and again.
@lru_cache(maxsize=1024)
def presentation(key: str, content_type: str, inline: bool) -> Headers:
    """How a browser is to show the object of ``key``: its type, its file name, and for ``inline`` the sandbox."""
    headers: Headers = (
        ("Content-Type", content_type),
        ("Content-Disposition", content_disposition(key, inline)),
        NO_SNIFFING,
    )
    return (*headers, ("Content-Security-Policy", SANDBOX)) if inline else headers


def extended_filename(header: str) -> str | None:
    """The ``filename*`` of a part of a form, decoded (RFC 8187, UTF-8); None where there is none that can be read.

    RFC 7578 section 4.2 forbids it, but some clients send the real name there, beside an RFC 2047 encoded one.
    """
    found = _EXTENDED.search(_QUOTED.sub("", header))
    try:
        return unquote(found[1], errors="strict") if found else None
    except UnicodeDecodeError:
        return None
