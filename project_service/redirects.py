"""Where a link of an e-mail, or a provider, may lead in the end: ``auth.redirect_urls``.

Addresses are compared part by part after they were parsed, as browsers do it, never as texts. What no browser and no
parser could read differently is all that is taken: no credentials, backslashes, dot segments, or letters outside
ASCII."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from attrs import evolve, frozen

MAX_CHARACTERS = 2048
# What RFC 3986 allows in an address; brackets are for IPv6 alone.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._~:/?#\[\]!$&'()*+,;=%-]*\Z")
_WRONG_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
# Scripts and documents that a browser would run or show with the tokens in their address.
_NEVER = frozenset({"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source"})
_PORTS = {"http": 80, "https": 443}


@frozen
class Address:
    """An address in its parts. ``path`` begins with a slash for http and https."""

    scheme: str
    host: str
    port: int | None
    path: str
    query: str

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """None if the text cannot lead anywhere. A fragment is dropped: ours takes its place."""
        if len(text) > MAX_CHARACTERS or _ADDRESS.match(text) is None or _WRONG_PERCENT.search(text):
            return None
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        scheme = parts.scheme
        if scheme in _NEVER or not _is_host(parts) or _leaves(parts.path):
            return None
        is_web = scheme in _PORTS
        if is_web and not parts.hostname:
            return None
        path = parts.path or ("/" if is_web else "")
        return cls(scheme, parts.hostname or "", port or _PORTS.get(scheme), path, parts.query)

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port in (None, _PORTS.get(self.scheme)) else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def source(self) -> str:
        """What a content security policy calls it (CSP level 3 section 2.3.1)."""
        return self.origin if self.scheme in _PORTS else f"{self.scheme}:"

    @property
    def text(self) -> str:
        return f"{self.origin}{self.path}{'?' if self.query else ''}{self.query}"

    def with_query(self, parameters: Mapping[str, str]) -> str:
        return evolve(self, query="&".join(filter(None, (self.query, urlencode(parameters))))).text

    def with_fragment(self, parameters: Mapping[str, str]) -> str:
        return f"{self.text}#{urlencode(parameters)}"


def _is_host(parts: SplitResult) -> bool:
    """Whether the authority is a host, with or without a port, as every reader sees it."""
    authority = parts.netloc
    if "%" in authority or "@" in authority:
        return False
    if authority.startswith("["):
        return re.match(r"\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?\Z", authority) is not None
    return re.match(r"[A-Za-z0-9._*-]*(:[0-9]{1,5})?\Z", authority) is not None


def _leaves(path: str) -> bool:
    """Whether the path has dot segments, or separators in disguise."""
    decoded = unquote(path)
    return "\\" in decoded or any(one in (".", "..") for one in decoded.split("/")) or "//" in path


def allowed(target: str, patterns: Sequence[str]) -> Address | None:
    """``target`` without its fragment, if one of ``patterns`` allows it."""
    address = Address.parse(target)
    if address is None or "*" in address.host:
        return None
    return address if any(_matches(address, pattern) for pattern in patterns) else None


def _matches(address: Address, pattern: str) -> bool:
    known = Address.parse(pattern)
    if known is None or (address.scheme, address.port) != (known.scheme, known.port):
        return False
    label, dot, rest = address.host.partition(".")
    known_label, known_dot, known_rest = known.host.partition(".")
    if (dot, rest) != (known_dot, known_rest) or not _same(label, known_label):
        return False
    segments, known_segments = address.path.split("/"), known.path.split("/")
    # One that ends in a slash is a prefix, of which the last segment is empty.
    is_prefix = known.path.endswith("/") or not known.path
    if is_prefix:
        length = len(known_segments) - 1
        return len(segments) > length and all(map(_same, segments[:length], known_segments[:length]))
    return (
        address.query == known.query
        and len(segments) == len(known_segments)
        and all(map(_same, segments, known_segments))
    )


def _same(given: str, known: str) -> bool:
    before, star, after = known.partition("*")
    if not star:
        return given == known
    return len(given) > len(before) + len(after) and given.startswith(before) and given.endswith(after)


def pattern(value: str) -> str:
    """``value`` as one of ``auth.redirect_urls``. Raises ``ValueError``."""
    known = Address.parse(value)
    if known is None or "#" in value:
        raise ValueError(
            "must be an address such as https://www.example.com/welcome, without user name and fragment"
        )
    stars = known.host.count("*") + known.path.count("*")
    if stars > 1 or "*" in known.query or "*" in known.host.partition(".")[2]:
        raise ValueError("may have one *, in a segment of the path or in the first label of the host")
    if "*" in known.host and known.host.count(".") < 2:  # a domain that somebody owns
        raise ValueError("must have a domain of two labels at least behind the *")
    return value
