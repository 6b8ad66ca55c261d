"""The tests of the HTTP edge once more, over twisted.web's parser (``server.http_parser = "twisted"``)."""

from __future__ import annotations

from types import ModuleType

from twisted.trial.unittest import TestCase

from tests.attack_corpus import CORPUS
from tests.fakes import App
from tests.http import test_attacks_framing, test_edge

# Where twisted.web's parser is laxer than the corpus, within what RFC 9112 leaves to a recipient: folded lines are
# joined (5.2), trailers thrown away unread (7.1.2), control characters kept (RFC 9110 5.5). Its chunk sizes do not
# overflow, so they are waited for.
LAXER = (
    "CL b'\\r\\n",
    "TE b'\\r\\n",
    "header b'X:",
    "trailer b'",
    "chunk size b'fff",
    "chunk size b'1000",
    "LF for the end",
)
STRICT = [case for case in CORPUS if not case.name.startswith(LAXER)]


def _again(case: type[TestCase]) -> type[TestCase]:
    def setUp(self: TestCase) -> None:
        case.setUp(self)
        self.patch(App, "parser", "twisted")
        self.patch(test_attacks_framing, "CORPUS", STRICT)

    return type(f"{case.__name__}OnTwisted", (case,), {"setUp": setUp, "__module__": __name__})


def _cases(module: ModuleType) -> list[type[TestCase]]:
    found = [
        value for value in vars(module).values() if isinstance(value, type) and issubclass(value, TestCase)
    ]
    return [case for case in found if case.__module__ == module.__name__]


for _case in [*_cases(test_edge), *_cases(test_attacks_framing)]:
    globals()[f"{_case.__name__}OnTwisted"] = _again(_case)
del _case
