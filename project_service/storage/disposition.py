"""``Content-Disposition`` and what else keeps a stored page from acting as the site. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from project_service.errors import Headers

# A stored page that is shown inline may neither run script nor load anything but data from this site.
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"

# The content type that is sent holds, whatever the bytes look like.
NO_SNIFFING = ("X-Content-Type-Options", "nosniff")

# What a file name in quotes is better without; a key has no control characters, but this is a header.
_NOT_PLAIN = re.compile(r'[^ -~]|["\\%]')
# One that does not end goes on to the end: looking again from each quote in it would take long.
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*+["\\]?')
_EXTENDED = re.compile(r";\s*filename\*\s*=\s*utf-8'[^';]*'([^\s;\"]+)", re.ASCII | re.IGNORECASE)


def content_disposition(key: str, inline: bool) -> str:
    """RFC 6266: a plain file name for old readers, and the real one."""
    name = key.rsplit("/", 1)[-1]
    plain = _NOT_PLAIN.sub("_", name)
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"


# The same objects are asked for again and again.
@lru_cache(maxsize=1024)
def presentation(key: str, content_type: str, inline: bool) -> Headers:
    headers: Headers = (
        ("Content-Type", content_type),
        ("Content-Disposition", content_disposition(key, inline)),
        NO_SNIFFING,
    )
    return (*headers, ("Content-Security-Policy", SANDBOX)) if inline else headers


def extended_filename(header: str) -> str | None:
    """The ``filename*`` of a form's part, where there is one that can be read (RFC 8187, UTF-8).

    RFC 7578 section 4.2 has none, but some clients send the real name there, beside one that is in RFC 2047's words.
    """
    found = _EXTENDED.search(_QUOTED.sub("", header))
    try:
        return unquote(found[1], errors="strict") if found else None
    except UnicodeDecodeError:
        return None
