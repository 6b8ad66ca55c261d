"""The path to the role in a token's claims: ``$.role``, ``$.roles[?@ != "guest" && search(@, "^app_")]``.

A path that begins with ``$`` is JSON Path (RFC 9535). Any other is in the form that PostgREST used before version 16,
such as ``.app.roles[?(@ ^== "admin")]``. PostgREST's reference: ``jwt-role-claim-key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from jsonpath_rfc9535 import JSONPathEnvironment

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
    """A parsed path to the role in the claims of a token."""

    read: Read

    def of(self, claims: Mapping[str, Any]) -> str | None:
        """The text that the path leads to: the first if there are several, None if there is none.

        Any other value is returned as JSON. No role has such a name, so the request fails instead of running as if
        there were no role. Raises ``ValueError`` for claims that are nested too deeply.
        """
        role = next(iter(self.read(claims)), None)
        return role if role is None or isinstance(role, str) else json.dumps(role, ensure_ascii=False)


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` if ``text`` is not a path to a claim.

    A text that begins with ``$$`` is read as in PostgREST's configuration file, where each ``$`` is doubled.
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


def _by_steps(path: str) -> Read | None:
    steps, at = [], 0
    while match := _STEP.match(path, at):
        steps.append(_step(match))
        at = match.end()
    if at < len(path) or not steps:
        return None

    def read(claims: Any) -> Iterable[Any]:
        for step in steps:
            claims = step(claims)
        return () if claims is None else (claims,)

    return read


def _step(match: re.Match[str]) -> Callable[[Any], Any]:
    """The function that follows one step: from a value to the value there, or None."""
    if match["test"] is not None:
        test, wanted = _TESTS[match["test"]], _unquoted(match["text"])
        return lambda value: next((item for item in _texts(value) if test(item, wanted)), None)
    if match["start"] is not None:
        cut = slice(int(match["start"] or 0), int(match["stop"]) if match["stop"] else None)
        return lambda value: value[cut] or None if isinstance(value, str) else None
    if match["index"] is not None:
        index = int(match["index"])
        return lambda value: (
            value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None
        )
    key = match["key"] or _unquoted(match["quoted"])
    return lambda value: value.get(key) if isinstance(value, dict) else None


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _by_json_path(path: str) -> Read | None:
    # Imported only if there is such a path: the library takes a tenth of a second and 6 MiB.
    from jsonpath_rfc9535 import JSONPathError

    try:
        query = _json_path_environment().compile(path)
    except JSONPathError:
        return None

    def read(claims: Any) -> Iterable[Any]:
        try:
            return query.find(claims).values()
        except JSONPathError:
            raise ValueError("The claims cannot be read") from None

    return read if query.segments else None


def _json_path_environment() -> JSONPathEnvironment:
    """RFC 9535, but ``search`` and ``match`` use Python's regular expressions. The library's follow RFC 9485, which
    does not have ``\\w``, and match nothing for a pattern that is invalid there.

    Its ``compile`` raises ``JSONPathError`` for an invalid path, and ``ValueError`` for an invalid pattern in one.
    """
    from jsonpath_rfc9535 import JSONPathEnvironment
    from jsonpath_rfc9535.filter_expressions import StringLiteral
    from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction

    class Matching(FilterFunction):
        arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012  # declared as the library's own are
        return_type = ExpressionType.LOGICAL

        def __init__(self, matcher: Callable[[str, str], object]) -> None:
            self._matcher = matcher

        def __call__(self, text: object, pattern: object) -> bool:
            if not isinstance(text, str) or not isinstance(pattern, str):
                return False
            try:
                return self._matcher(pattern, text) is not None
            except re.error:
                # The pattern came from the claims, so it could not be checked before.
                return False

    class Environment(JSONPathEnvironment):
        def setup_function_extensions(self) -> None:
            super().setup_function_extensions()
            self.function_extensions.update(search=Matching(re.search), match=Matching(re.fullmatch))

        def check_well_typedness(self, token: Any, func: FilterFunction, args: list[Any]) -> None:
            super().check_well_typedness(token, func, args)
            if isinstance(func, Matching) and isinstance(args[1], StringLiteral):
                try:
                    re.compile(args[1].value)
                except re.error as fault:
                    raise ValueError(f"not a regular expression: {fault}") from None

    return Environment()
