"""Two workers act as one service: what one has acknowledged, the other knows at once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from project_service.settings.model import Store
from tests.live.loaded_service import make_ledger, sections, started
from tests.live.workers.shared_laws import GUESSING, Shared

STEPS = 120


def test_whichever_worker_is_asked_knows_what_the_other_acknowledged(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*GUESSING)
    known = sections(database, store_settings)
    with started(tmp_path, **known, storage="") as daemon:
        make_ledger(tmp_path)
        Shared(daemon, tmp_path, Random(7)).go(STEPS)
        assert daemon.stop() == 0, daemon.text
