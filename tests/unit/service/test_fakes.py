"""A fake has the public methods of the class that it stands for, with the same parameters and types, and no others.
Whether they do the same is for ``tests/contracts`` to say."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.auth.lookups import Lookups
from project_service.auth.postgres import Repository
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.rows.links import LinkRows
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.rows.renditions import RenditionRows
from project_service.storage.rows.resumables import ResumableRows
from project_service.storage.s3.client import S3Store
from tests.fakes.auth import MemoryLookups, MemoryRepository
from tests.fakes.storage import (
    FakeBuckets,
    FakeGarbage,
    FakeLinks,
    FakeObjects,
    FakeRenditions,
    FakeResumables,
)
from tests.fakes.store import MemoryStore

FAKES: Mapping[type, type] = {
    MemoryRepository: Repository,
    MemoryLookups: Lookups,
    FakeBuckets: BucketRows,
    FakeObjects: ObjectRows,
    FakeGarbage: GarbageRows,
    FakeLinks: LinkRows,
    FakeRenditions: RenditionRows,
    FakeResumables: ResumableRows,
    MemoryStore: S3Store,
}
# Nothing is signed in memory.
OF_SIGNATURES = {"digest", "sign_as"}


def methods(of: type) -> Mapping[str, Callable[..., Any]]:
    named = inspect.getmembers(of, inspect.isfunction)
    return {name: one for name, one in named if name[0] != "_" and name not in OF_SIGNATURES}


def shape(method: Callable[..., Any]) -> Any:
    """The parameters with their kinds and defaults, all types, and whether the result has to be awaited."""
    types = typing.get_type_hints(method)
    awaited = inspect.iscoroutinefunction(method)
    if typing.get_origin(types["return"]) is Coroutine:
        awaited, types["return"] = True, typing.get_args(types["return"])[2]
    parameters = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in parameters], types, awaited


class Fakes(TestCase):
    def test_a_fake_has_the_methods_of_what_it_stands_for(self) -> None:
        for fake, real in FAKES.items():
            self.assertEqual(methods(fake).keys(), methods(real).keys(), fake.__name__)
            for name, method in methods(real).items():
                self.assertEqual(shape(methods(fake)[name]), shape(method), f"{fake.__name__}.{name}")
