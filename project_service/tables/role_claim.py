"""Where in a token's claims the role is: ``$.role``, ``$.app["user role"][0]``, ``$.roles[?@ == "admin"]``.

JSON Path (RFC 9535) as far as a role can need it, with or without the ``$``, and PostgREST's older tests such as
``[?(@ ^== "admin")]``. Of several values the first counts; a slice cuts a text as well. PostgREST's reference:
``jwt-role-claim-key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

_STEP = re.compile(
    r"\.(?P<key>[\w$@-]+)|\.?\[?[\"'](?P<quoted>[^\"']+)[\"']\]?|\[(?P<index>-?\d+)\]"
    r"|\[(?P<start>-?\d*):(?P<stop>-?\d*)\]|(?P<any>\.\*|\[\*\])"
    r"|\[\?\(?@ ?(?P<test>==|!=|\^==|==\^|\*==) ?[\"'](?P<text>[^\"']*)[\"']\)?\]"
    r"|\[\?(?P<function>search|match)\(@, ?[\"'](?P<pattern>[^\"']*)[\"']\)\]"
)


@frozen
class RoleClaim:
    """A parsed path. ``of`` returns the text there, None where nothing is; what is no text is no role's name, so that
    acting in it fails instead of acting as nobody."""

    steps: tuple[Mapping[str, str | None], ...]

    def of(self, claims: Mapping[str, Any]) -> str | None:
        found: Any = claims
        for step in self.steps:
            found = _follow(found, step)
        return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` where ``text`` is not such a path."""
    steps, at = [], int(text.startswith("$"))
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f"not a path to a claim: {text!r}")
        if found["pattern"] is not None:
            _checked(found["pattern"])
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
    if step["start"] is not None or step["stop"] is not None:
        return _cut(value, step["start"], step["stop"])
    if step["any"] is not None:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return next(iter(members), None)
    return _chosen(value, step) if isinstance(value, list) else None


def _chosen(items: list[Any], step: Mapping[str, str | None]) -> Any:
    if step["index"] is not None:
        index = int(step["index"])
        return items[index] if -len(items) <= index < len(items) else None
    texts = (item for item in items if isinstance(item, str))
    if step["pattern"] is not None:
        pattern = re.compile(step["pattern"])
        passes = pattern.search if step["function"] == "search" else pattern.fullmatch
        return next(filter(passes, texts), None)
    return next((text for text in texts if _passes(text, step["test"], step["text"] or "")), None)


def _cut(value: Any, start: str | None, stop: str | None) -> Any:
    if not isinstance(value, (str, list)):
        return None
    found = value[int(start) if start else None : int(stop) if stop else None]
    return found or None if isinstance(found, str) else next(iter(found), None)


def _passes(item: str, test: str | None, wanted: str) -> bool:
    return {
        "==": item == wanted,
        "!=": item != wanted,
        "^==": item.startswith(wanted),
        "==^": item.endswith(wanted),
        "*==": wanted in item,
    }[test or "=="]
