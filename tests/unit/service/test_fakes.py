"""A fake has the public methods of its SQL class, with the same parameters and types, and no others. Whether they do
the same is for ``tests/contracts`` to say."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.auth.postgres import Repository
from tests.fakes.auth import MemoryRepository

PAIRS: list[tuple[type, type]] = [
    (MemoryRepository, Repository),
]


def methods(of: type) -> Mapping[str, Callable[..., Any]]:
    return {name: one for name, one in inspect.getmembers(of, inspect.isfunction) if name[0] != "_"}


def shape(method: Callable[..., Any]) -> Any:
    """Whether it has to be awaited, the parameters with their kinds and defaults, and all types."""
    parameters = [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
    return inspect.iscoroutinefunction(method), parameters, typing.get_type_hints(method)


class Fakes(TestCase):
    def test_a_fake_has_the_methods_of_its_sql_class(self) -> None:
        for fake, real in PAIRS:
            self.assertEqual(methods(fake).keys(), methods(real).keys(), fake.__name__)
            for name, method in methods(real).items():
                self.assertEqual(shape(methods(fake)[name]), shape(method), f"{fake.__name__}.{name}")
