"""``Content-Disposition`` and what else keeps a stored page from acting as the site. Pure."""

from __future__ import annotations

from urllib.parse import quote

from project_service.errors import Headers

# A stored page that is shown inline may neither run script nor load anything but data from this site.
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"

# The content type that is sent holds, whatever the bytes look like.
NO_SNIFFING = ("X-Content-Type-Options", "nosniff")

# RFC 8187 section 3.2.1, attr-char.
_ATTR_CHAR = "!#$&+-.^_`|~"


def content_disposition(key: str, inline: bool) -> str:
    """RFC 6266: a plain file name for old readers, and the real one."""
    name = key.rsplit("/", 1)[-1]
    plain = "".join(char if 0x20 <= ord(char) < 0x7F and char not in '"\\%' else "_" for char in name)
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe=_ATTR_CHAR)}"


def presentation(key: str, content_type: str, inline: bool) -> Headers:
    headers: Headers = (
        ("Content-Type", content_type),
        ("Content-Disposition", content_disposition(key, inline)),
        NO_SNIFFING,
    )
    return (*headers, ("Content-Security-Policy", SANDBOX)) if inline else headers
