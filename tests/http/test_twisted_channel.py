"""The tests of the HTTP edge run again with twisted.web's parser (``server.http_parser = "twisted"``)."""

from __future__ import annotations

from types import ModuleType

from twisted.trial.unittest import TestCase

from tests.fakes import App
from tests.http import (
    test_attacks_framing,
    test_edge,
    test_edge_bodies,
    test_edge_keys,
    test_edge_origins,
    test_edge_streams,
    test_overload,
    test_tables_paths,
)

EDGE = (test_edge, test_edge_bodies, test_edge_keys, test_edge_origins, test_edge_streams)


def _again(case: type[TestCase]) -> type[TestCase]:
    def setUp(self: TestCase) -> None:
        case.setUp(self)
        self.patch(App, "parser", "twisted")

    return type(f"{case.__name__}OnTwisted", (case,), {"setUp": setUp, "__module__": __name__})


def _cases(module: ModuleType) -> list[type[TestCase]]:
    found = [
        value for value in vars(module).values() if isinstance(value, type) and issubclass(value, TestCase)
    ]
    return [case for case in found if case.__module__ == module.__name__]


for _module in (*EDGE, test_attacks_framing, test_overload, test_tables_paths):
    for _case in _cases(_module):
        globals()[f"{_case.__name__}OnTwisted"] = _again(_case)
del _case
