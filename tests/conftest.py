"""Makes one pytest run of three kinds of tests: trial's TestCases, plain functions, and pytest-twisted's on real
servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from werkzeug.routing import Rule

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
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", PATIENT)
settings.register_profile("quick", PATIENT, max_examples=5)


def _makes_no_urls(*_: object, **__: object) -> tuple[str, str]:
    raise AssertionError("the service makes no URLs of its routes")


# For each route of each application werkzeug compiles two functions that make URLs of it, which nobody calls. That
# took three quarters of the time to make an application, and most tests in memory make one.
Rule._compile_builder = lambda rule, append_unknown=True: _makes_no_urls  # type: ignore[assignment]

# What ``--quick`` leaves out: files of many seconds, a third of the time of all.
SLOW = (
    *("unit/service/test_documents", "unit/service/test_linear_time", "unit/auth/test_mail_message"),
    *("http/attacks/test_framing", "http/edge/test_random_requests", "http/storage/test_resumable_rights"),
)

# The files that take longest, which are run first, so that not one process still runs one when the others are done.
LONGEST = (
    "containers/test_image",
    *(
        "service/test_howto",
        "attacks/test_callers_apart",
        "service/test_openapi_fuzz",
        "service/test_schema_page",
    ),
    *("storage/test_killed_uploads", "service/test_faults_processes", "workers/test_workers"),
    *("storage/test_tus_clients", "cli/test_types_sent", "database/test_definitions", "storage/test_crash"),
    *("service/test_run", "service/test_tutorials", "cli/test_check", "attacks/test_turns"),
    *("embedded/test_recovery", "cli/test_types", "storage/test_policies", "storage/test_machine"),
    *(
        "tables/test_service",
        "cli/test_openings",
        "tables/test_trees",
        "tables/test_imports",
        "tables/test_laws",
    ),
    *("tables/test_neighbours", "service/test_wheel", "storage/test_service", "service/test_endpoints"),
    *(
        "auth/test_mail_server",
        "storage/test_image_process",
        "auth/test_service",
        "database/test_trust_property",
    ),
    *("cli/test_extension", "database/test_pipelines", "service/test_certificates", "database/test_pipeline"),
    *("embedded/test_mails", "cli/test_sql_folder", "storage/test_memory", "service/test_secrets"),
)


def _is_trial(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return cls is not None and issubclass(cls, SynchronousTestCase)


def _turn(item: pytest.Item) -> int:
    name = f"{item.path.parent.name}/{item.path.stem}"
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="fewer random examples, and without the slowest files of unit and http",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if config.getoption("quick") else "patient")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = f"{collection_path.parent.parent.name}/{collection_path.parent.name}/{collection_path.stem}"
    return True if config.getoption("quick") and name in SLOW else None


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
