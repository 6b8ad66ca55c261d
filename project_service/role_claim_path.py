"""JSON Path (RFC 9535), but with Python's regular expressions instead of RFC 9485's."""

from __future__ import annotations

import re
from typing import Any

from jsonpath_rfc9535 import JSONPathEnvironment
from jsonpath_rfc9535.filter_expressions import StringLiteral
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction


class _Matching(FilterFunction):
    """The functions ``search`` and ``match``. The library's own follow RFC 9485, which does not have ``\\w``, and
    find nothing for a pattern that is not valid there."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012  # declared as the library's own are
    return_type = ExpressionType.LOGICAL

    def __init__(self, whole: bool) -> None:
        self._find = re.fullmatch if whole else re.search

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        try:
            return self._find(pattern, text) is not None
        except re.error:
            # The pattern came from the claims, so it could not be checked before.
            return False


class Environment(JSONPathEnvironment):
    """``compile`` raises ``JSONPathError`` for a bad path, and ``ValueError`` for a bad pattern in one."""

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions.update(search=_Matching(whole=False), match=_Matching(whole=True))

    def check_well_typedness(self, token: Any, func: FilterFunction, args: list[Any]) -> None:
        super().check_well_typedness(token, func, args)
        if isinstance(func, _Matching) and isinstance(args[1], StringLiteral):
            try:
                re.compile(args[1].value)
            except re.error as fault:
                raise ValueError(f"not a regular expression: {fault}") from None
