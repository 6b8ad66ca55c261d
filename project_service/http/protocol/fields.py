"""The characters of HTTP's header fields, written to stand between the brackets of a regular expression. Pure."""

from __future__ import annotations

# RFC 9110 section 5.6.2: the characters of tokens, such as names of headers and methods.
TCHAR = r"!#$%&'*+.^_`|~0-9A-Za-z-"
# RFC 9110 section 5.5: control characters that no header value may have. A tab is allowed.
CONTROL = r"\x00-\x08\x0a-\x1f\x7f"
