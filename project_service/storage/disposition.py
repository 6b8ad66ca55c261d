"""``Content-Disposition``, and the other headers that keep a stored page from acting as the site. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote

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
