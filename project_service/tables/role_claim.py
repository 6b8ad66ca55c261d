"""Where in a token's claims the role is: ``$.role``, ``$.app["user role"][0]``, ``$.roles[?@ == "admin"]``.

JSON Path (RFC 9535) as far as a role can need it, with or without the ``$``, and PostgREST's older tests such as
``[?(@ ^== "admin")]``. PostgREST's reference: ``jwt-role-claim-key``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

_STEP = re.compile(
    r"\.(?P<key>[\w$@-]+)|\.?\[?[\"'](?P<quoted>[^\"']+)[\"']\]?|\[(?P<index>\d+)\]"
    r"|\[\?\(?@ ?(?P<test>==|!=|\^==|==\^|\*==) ?[\"'](?P<text>[^\"']*)[\"']\)?\]"
    r"|\[\?search\(@, ?[\"'](?P<search>[^\"']*)[\"']\)\]"
)


@frozen
class RoleClaim:
    """A parsed path. ``of`` returns the text there, or None."""

    steps: tuple[Mapping[str, str | None], ...]

    def of(self, claims: Mapping[str, Any]) -> str | None:
        found: Any = claims
        for step in self.steps:
            found = _follow(found, step)
        return found if isinstance(found, str) else None


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` where ``text`` is not such a path."""
    steps, at = [], int(text.startswith("$"))
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f"not a path to a claim: {text!r}")
        if found["search"] is not None:
            _checked(found["search"])
        steps.append(found.groupdict())
        at = found.end()
    return RoleClaim(tuple(steps))


def _checked(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None


def _follow(value: Any, step: Mapping[str, str | None]) -> Any:
    key = step["key"] or step["quoted"]
    if key is not None:
        return value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    if step["index"] is not None:
        index = int(step["index"])
        return value[index] if index < len(value) else None
    if step["search"] is not None:
        pattern = re.compile(step["search"])
        return next((item for item in value if isinstance(item, str) and pattern.search(item)), None)
    wanted = step["text"] or ""
    return next(
        (item for item in value if isinstance(item, str) and _passes(item, step["test"], wanted)), None
    )


def _passes(item: str, test: str | None, wanted: str) -> bool:
    return {
        "==": item == wanted,
        "!=": item != wanted,
        "^==": item.startswith(wanted),
        "==^": item.endswith(wanted),
        "*==": wanted in item,
    }[test or "=="]
