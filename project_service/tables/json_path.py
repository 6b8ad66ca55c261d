"""JSON Path (RFC 9535) with the regular expressions that people write."""

from __future__ import annotations

import re
from typing import Any

from jsonpath_rfc9535 import JSONPathEnvironment
from jsonpath_rfc9535.filter_expressions import StringLiteral
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction


class _Matching(FilterFunction):
    """``search`` and ``match``. The library's own know RFC 9485 alone, which has no ``\\w``, and find nothing by what
    is not of it."""

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
            # One that the claims themselves hold.
            return False


class Environment(JSONPathEnvironment):
    """``compile`` raises ``JSONPathError`` where a path is none, ``ValueError`` where a pattern in it is none."""

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
