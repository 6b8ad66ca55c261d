"""Makes one pytest run of three kinds of tests: trial's TestCases, plain functions, and pytest-twisted's on real
servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from project_service.process import tune_memory
from tests.live.logged import LoggedErrors
from tests.live.services import (  # noqa: F401  # fixtures, for tests/live and tests/contracts alike
    database,
    empty_database,
    module_database,
    services,
    store_settings,
    template,
    with_database,
)

# No limit on the time of an example, since the machine may be busy with other work.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# The files that take longest, which are run first, so that not one process still runs one when the others are done.
LONGEST = (
    *(
        "service/test_openapi_fuzz",
        "service/test_faults_processes",
        "workers/test_workers",
        "storage/test_killed_uploads",
        "service/test_run",
        "service/test_howto",
    ),
    *("embedded/test_recovery", "service/test_proxies", "service/test_endpoints", "auth/test_service"),
    *("service/test_wheel", "attacks/test_sockets", "storage/test_memory", "service/test_certificates"),
    *("storage/test_store_bytes", "service/test_backup", "tables/test_service", "service/test_secrets"),
    *("storage/test_broken", "storage/test_service", "attacks/test_roles"),
    *("storage/test_machine", "tables/test_trees", "tables/test_neighbours"),
)


def _is_trial(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return cls is not None and issubclass(cls, SynchronousTestCase)


def _turn(item: pytest.Item) -> int:
    name = f"{item.path.parent.name}/{item.path.stem}"
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run trial's tests first: after each one trial empties the reactor, which would break the live servers."""
    items.sort(key=lambda item: (not _is_trial(item), _turn(item)))


@pytest.fixture(scope="session")
def small_heap() -> None:
    """Exclude what exists now from garbage collection, which otherwise takes longer after each test than most
    tests."""
    tune_memory()


@pytest.fixture(scope="session", autouse=True)
def no_colours() -> Iterator[None]:
    """Programs that tests run print plain text, also where the environment asks for colours, as that of CI does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORCE_COLOR", raising=False)
        patch.setenv("NO_COLOR", "1")
        yield


@pytest.fixture(autouse=True)
def logged_errors(request: pytest.FixtureRequest) -> Iterator[LoggedErrors]:
    """Fails a test that logs an error or drops a failed Deferred, as trial does for its own tests.

    A test that provokes an error removes it by ``logged_errors.flush(…)``, like trial's ``flushLoggedErrors``.
    """
    seen = LoggedErrors()
    if _is_trial(request.node):
        yield seen
        return
    request.getfixturevalue("small_heap")
    globalLogPublisher.addObserver(seen)
    try:
        yield seen
        # A failed Deferred that nobody has handled logs that when it is collected.
        gc.collect()
    finally:
        globalLogPublisher.removeObserver(seen)
    seen.raise_if_any()
