"""Where in a token's claims the role is: ``$.role``, ``$.app["user role"][0]``, ``$.roles[?@ == "admin"]``.

JSON Path (RFC 9535) as far as a role can need it, with or without the ``$``, and PostgREST's older tests such as
``[?(@ ^== "admin")]``. Of several values that the whole path leads to the first counts; a slice cuts a text as well.
PostgREST's reference: ``jwt-role-claim-key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

_TEXT = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
_HERE = r"@(?P<{0}>(?:\.[\w$-]+)*)"
_STEP = re.compile(
    rf"(?P<deep>\.(?=\.[^.\[])|\.\.(?=\[))|\.(?P<key>[\w$@-]+)|\.?(?P<quoted>{_TEXT})|\.?\[\s*(?P<bracketed>{_TEXT})\s*\]"
    r"|\[\s*(?P<index>-?\d+)\s*\]|\[\s*(?P<start>-?\d*)\s*:\s*(?P<stop>-?\d*)\s*\]|(?P<any>\.\*|\[\s*\*\s*\])"
    rf"|\[\s*\?\s*(?P<open>\(\s*)?{_HERE.format('tested')}\s*(?P<test>==|!=|\^==|==\^|\*==)\s*(?P<text>{_TEXT})"
    r"(?(open)\s*\))\s*\]"
    rf"|\[\s*\?\s*(?P<function>search|match)\(\s*{_HERE.format('searched')}\s*,\s*(?P<pattern>{_TEXT})\s*\)\s*\]"
)
# Any other backslash is a regular expression's own: without it ``\.`` would let any character pass.
_ESCAPED = re.compile(r"\\([\"'\\])")
_TEXTS = ("quoted", "bracketed", "text", "pattern")


@frozen
class RoleClaim:
    """A parsed path. ``of`` returns the text there, None where nothing is; what is no text is no role's name, so that
    acting in it fails instead of acting as nobody."""

    steps: tuple[Mapping[str, str | None], ...]

    def of(self, claims: Mapping[str, Any]) -> str | None:
        nodes: list[Any] = [claims]
        for step in self.steps:
            nodes = [found for node in nodes for found in _follow(node, step)]
        found = nodes[0] if nodes else None
        return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` where ``text`` is not such a path."""
    steps, at = [], int(text.startswith("$"))
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f"not a path to a claim: {text!r}")
        step = found.groupdict()
        step.update((name, _unquoted(step[name])) for name in _TEXTS)
        if step["pattern"] is not None:
            _checked(step["pattern"])
        steps.append(step)
        at = found.end()
    return RoleClaim(tuple(steps))


def _unquoted(text: str | None) -> str | None:
    return None if text is None else _ESCAPED.sub(r"\1", text[1:-1])


def _checked(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None


def _follow(value: Any, step: Mapping[str, str | None]) -> Iterable[Any]:
    for name in ("key", "quoted", "bracketed"):
        key = step[name]
        if key is not None:
            return [value[key]] if isinstance(value, dict) and key in value else ()
    if step["start"] is not None:
        return _cut(value, step["start"], step["stop"])
    if step["index"] is not None:
        index = int(step["index"])
        return [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else ()
    if step["deep"] is not None:
        return _descendants(value)
    members = _members(value)
    return members if step["any"] is not None else [found for found in members if _chosen(found, step)]


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _descendants(value: Any) -> Iterator[Any]:
    """``value`` itself and whatever is in it. A token's claims are no deeper than their parser goes."""
    yield value
    for member in _members(value):
        yield from _descendants(member)


def _chosen(member: Any, step: Mapping[str, str | None]) -> bool:
    for name in (step["tested"] or step["searched"] or "").split(".")[1:]:
        member = member.get(name) if isinstance(member, dict) else None
    if not isinstance(member, str):
        return False
    if step["pattern"] is None:
        return _passes(member, step["test"], step["text"] or "")
    pattern = re.compile(step["pattern"])
    passes = pattern.search if step["function"] == "search" else pattern.fullmatch
    return passes(member) is not None


def _cut(value: Any, start: str | None, stop: str | None) -> Iterable[Any]:
    if not isinstance(value, (str, list)):
        return ()
    found = value[int(start) if start else None : int(stop) if stop else None]
    return [found] if isinstance(found, str) and found else found


def _passes(item: str, test: str | None, wanted: str) -> bool:
    return {
        "==": item == wanted,
        "!=": item != wanted,
        "^==": item.startswith(wanted),
        "==^": item.endswith(wanted),
        "*==": wanted in item,
    }[test or "=="]
