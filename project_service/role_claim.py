"""The path to the role in a token's claims: ``$.role``, ``$.roles[?@ != "guest" && search(@, "^app_")]``.

A path that begins with ``$`` is JSON Path (RFC 9535). Any other is in the form that PostgREST used before version 16,
such as ``.app.roles[?(@ ^== "admin")]``. PostgREST's reference: ``jwt-role-claim-key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import frozen

Read = Callable[[Any], Iterable[Any]]

# Most paths are names only. They are followed in each request, and a JSON Path library takes five times as long.
_NAMES_ONLY = re.compile(r"\$((?:\.[^\W\d]\w*)+)")
_STEP = re.compile(
    r"\.(?P<key>[\w$@-]+)|\.(?P<quoted>\"(?:[^\"\\]|\\.)*\")|\[(?P<index>-?\d+)\]|\[(?P<start>-?\d*):(?P<stop>-?\d*)\]"
    r"|\[\?\(@ *(?P<test>==|!=|\^==|==\^|\*==) *(?P<text>\"(?:[^\"\\]|\\.)*\")\)\]"
)
_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "==": lambda item, wanted: item == wanted,
    "!=": lambda item, wanted: item != wanted,
    "^==": lambda item, wanted: item.startswith(wanted),
    "==^": lambda item, wanted: item.endswith(wanted),
    "*==": lambda item, wanted: wanted in item,
}


@frozen
class RoleClaim:
    """A parsed path. ``of`` returns the text that the path leads to, the first if there are several, None if nothing
    is there. A value that is no text is returned as JSON: no role is called so, and the request fails instead of
    running as if there were no role. Raises ``ValueError`` for claims that are nested too deeply."""

    read: Read

    def of(self, claims: Mapping[str, Any]) -> str | None:
        found = next(iter(self.read(claims)), None)
        return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` if ``text`` is not a path to a claim.

    A text that begins with ``$$`` is taken as from PostgREST's configuration file, where each ``$`` is doubled.
    """
    path = text.replace("$$", "$") if text.startswith("$$") else text
    names = _NAMES_ONLY.fullmatch(path)
    read = (
        _by_json_path(path)
        if path.startswith("$") and names is None
        else _by_steps(names[1] if names else path)
    )
    if read is None:
        raise ValueError(f"not a path to a claim: {text!r}")
    return RoleClaim(read)


def _by_json_path(path: str) -> Read | None:
    # Imported only if there is such a path: the library takes a tenth of a second and 6 MiB.
    from jsonpath_rfc9535 import JSONPathError

    from project_service import role_claim_path

    try:
        query = role_claim_path.Environment().compile(path)
    except JSONPathError:
        return None

    def read(claims: Any) -> Iterable[Any]:
        try:
            return query.find(claims).values()
        except JSONPathError:
            raise ValueError("The claims cannot be read") from None

    return read if query.segments else None


def _by_steps(path: str) -> Read | None:
    steps, at = [], 0
    while found := _STEP.match(path, at):
        steps.append(_step(found))
        at = found.end()
    if at < len(path) or not steps:
        return None

    def read(claims: Any) -> Iterable[Any]:
        for step in steps:
            claims = step(claims)
        return () if claims is None else (claims,)

    return read


def _step(found: re.Match[str]) -> Callable[[Any], Any]:
    """The function that follows one step: from a value to the value there, or None."""
    if found["test"] is not None:
        test, wanted = _TESTS[found["test"]], _unquoted(found["text"])
        return lambda value: next((item for item in _texts(value) if test(item, wanted)), None)
    if found["start"] is not None:
        cut = slice(int(found["start"] or 0), int(found["stop"]) if found["stop"] else None)
        return lambda value: value[cut] or None if isinstance(value, str) else None
    if found["index"] is not None:
        index = int(found["index"])
        return lambda value: (
            value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None
        )
    key = found["key"] or _unquoted(found["quoted"])
    return lambda value: value.get(key) if isinstance(value, dict) else None


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])
