"""Where in a token's claims the role is: ``$.role``, ``$.app["user role"][0]``, ``$.roles[?@ == "admin"]``.

JSON Path (RFC 9535), of whose functions there are ``search`` and ``match``, and PostgREST's own paths of before
version 16 (``.roles[?(@ ^== "admin")]``, ``."a role"``, slices that cut a text). Of several values that the whole
path leads to the first counts. PostgREST's reference: "JWT Role Extraction".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from attrs import define, frozen

from project_service.tables import json_path
from project_service.tables.json_path import Condition, Operand, Select

_BLANK = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[\w$@-]+")
_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_INDEX = re.compile(r"-?\d+")
_SLICE = re.compile(r"(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?)?")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"(true|false|null)\b")
_FUNCTION = re.compile(r"(search|match)\(")
_SIGN = re.compile(r"\^==|==\^|\*==|[=!<>]=|[<>]")
# Any other backslash is a regular expression's own: without it ``\.`` would let any character pass.
_ESCAPED = re.compile(r"((?:\\u[0-9a-fA-F]{4})+)|\\([\"'\\/])")
_WORDS = {"true": True, "false": False, "null": None}


@frozen
class RoleClaim:
    """A parsed path. ``of`` returns the text there, None where nothing is; what is no text is no role's name, so that
    acting in it fails instead of acting as nobody."""

    steps: tuple[Select, ...]

    def of(self, claims: Mapping[str, Any]) -> str | None:
        nodes = json_path.followed(self.steps, claims, claims)
        found = nodes[0] if nodes else None
        return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def parse_role_claim(text: str) -> RoleClaim:
    """Raises ``ValueError`` where ``text`` is not such a path.

    One that begins with ``$$`` is written as in PostgREST's configuration file, where each ``$`` is doubled.
    """
    path = text.replace("$$", "$") if text.startswith("$$") else text
    reading = _Reading(path, int(path.startswith("$")))
    try:
        steps, _ = reading.steps()
        if reading.at != len(path):
            reading.fail()
    except (_NoPathError, RecursionError):
        raise ValueError(f"not a path to a claim: {text!r}") from None
    return RoleClaim(steps)


class _NoPathError(Exception):
    pass


@define
class _Reading:
    """How far the path has been read."""

    text: str
    at: int

    def fail(self) -> NoReturn:
        raise _NoPathError

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def takes(self, sign: str) -> bool:
        """Whether ``sign`` comes next, blanks before it aside."""
        at = _after_blanks(self.text, self.at)
        if not self.text.startswith(sign, at):
            return False
        self.at = at + len(sign)
        return True

    def needs(self, sign: str) -> None:
        if not self.takes(sign):
            self.fail()

    def steps(self) -> tuple[tuple[Select, ...], bool]:
        """And whether they lead to one value at most."""
        found, one = [], True
        while self.text.startswith((".", "["), at := _after_blanks(self.text, self.at)):
            self.at = at
            step, single = self.step()
            found.append(step)
            one = one and single
        return tuple(found), one

    def step(self) -> tuple[Select, bool]:
        if self.takes(".."):
            return json_path.within(self.selected()[0]), False
        self.takes(".")
        return self.selected()

    def selected(self) -> tuple[Select, bool]:
        """What stands after the dot, or in brackets."""
        if not self.text.startswith("[", self.at):
            if self.text.startswith("*", self.at):
                self.at += 1
                return json_path.every, False
            if (quoted := self.quoted()) is not None:
                return json_path.member(quoted), True
            name = self.take(_NAME) or self.fail()
            return json_path.member(name[0]), True
        self.at += 1
        found = [self.selector()]
        while self.takes(","):
            found.append(self.selector())
        self.needs("]")
        return json_path.several(tuple(select for select, _ in found)), len(found) == 1 and found[0][1]

    def selector(self) -> tuple[Select, bool]:
        self.take(_BLANK)
        if (name := self.quoted()) is not None:
            return json_path.member(name), True
        if self.takes("*"):
            return json_path.every, False
        if self.takes("?"):
            return json_path.those(self.either()), False
        if (cut := self.take(_SLICE)) is not None:
            bounds = [None if bound is None else int(bound) for bound in cut.groups()]
            return json_path.part(slice(*bounds)), False
        index = self.take(_INDEX) or self.fail()
        return json_path.element(int(index[0])), True

    def quoted(self) -> str | None:
        found = self.take(_TEXT)
        return None if found is None else _ESCAPED.sub(_unescaped, found[0][1:-1])

    def either(self) -> Condition:
        return self.joined("||", lambda: self.joined("&&", self.condition, all), any)

    def joined(
        self, sign: str, read: Callable[[], Condition], join: Callable[[list[bool]], bool]
    ) -> Condition:
        found = [read()]
        while self.takes(sign):
            found.append(read())
        if len(found) == 1:
            return found[0]
        return lambda root, node: join([test(root, node) for test in found])

    def condition(self) -> Condition:
        if self.takes("!"):
            test = self.group() or self.tested()
            return lambda root, node: not test(root, node)
        return self.group() or self.tested()

    def group(self) -> Condition | None:
        if not self.takes("("):
            return None
        test = self.either()
        self.needs(")")
        return test

    def tested(self) -> Condition:
        """A comparison, a function, or whether something is there."""
        self.take(_BLANK)
        if (function := self.take(_FUNCTION)) is not None:
            return self.called(function[1] == "match")
        started = self.at
        left = self.operand()
        self.take(_BLANK)
        sign = self.take(_SIGN)
        if sign is not None:
            return json_path.compared(left or self.fail(), sign[0], self.operand() or self.fail())
        self.at = started
        if not self.text.startswith(("@", "$"), self.at):
            self.fail()
        absolute = self.text[self.at] == "$"
        self.at += 1
        return json_path.exists(self.steps()[0], absolute)

    def operand(self) -> Operand | None:
        """None for a path that may lead to several values: those have no comparison."""
        self.take(_BLANK)
        if self.text.startswith(("@", "$"), self.at):
            absolute = self.text[self.at] == "$"
            self.at += 1
            steps, one = self.steps()
            return json_path.value_at(steps, absolute) if one else None
        value = self.literal()
        return lambda root, node: value

    def literal(self) -> Any:
        if (text := self.quoted()) is not None:
            return text
        if (word := self.take(_WORD)) is not None:
            return _WORDS[word[1]]
        number = self.take(_NUMBER) or self.fail()
        return json.loads(number[0])

    def called(self, whole: bool) -> Condition:
        operand = self.operand() or self.fail()
        self.needs(",")
        self.take(_BLANK)
        pattern = self.quoted()
        self.needs(")")
        if pattern is None:
            self.fail()
        try:
            return json_path.matches(operand, re.compile(pattern), whole)
        except re.error as fault:
            raise ValueError(f"not a regular expression: {fault}") from None


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _unescaped(found: re.Match[str]) -> str:
    return str(json.loads(f'"{found[1]}"')) if found[1] is not None else found[2]
