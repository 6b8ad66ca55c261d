"""What characters HTTP's fields are made of, to stand between the brackets of a regular expression. Pure."""

from __future__ import annotations

# RFC 9110 section 5.6.2: of tokens, as names of fields and methods are.
TCHAR = r"!#$%&'*+.^_`|~0-9A-Za-z-"
# Section 5.5: what no value has; a tab may be there.
CONTROL = r"\x00-\x08\x0a-\x1f\x7f"
