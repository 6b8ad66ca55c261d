"""Workers of two hosts killed at random moments during resumable uploads. ``python -m tests.chaos uploads`` kills
more, and ``test_crash`` kills at each step of one upload."""

from __future__ import annotations

from pathlib import Path
from random import Random, SystemRandom

import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.settings.model import Store
from tests.chaos.uploads import kill_during_uploads


@pytest_twisted.ensureDeferred
async def test_no_acknowledged_byte_is_lost_and_nothing_is_left_after_expiry(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    seed = SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it with the failure
    # The reactor goes on: it reads what the store logs, and a store that cannot log any more stops.
    await deferToThread(
        kill_during_uploads, tmp_path, Random(seed), 3, clients=5, beside=(database, store_settings)
    )
