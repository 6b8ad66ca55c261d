"""SIGHUP: the configuration is read again, and what can change is taken over as a whole, or nothing of it."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from project_service.auth.keyset import KeySetError
from project_service.configure import BadSettings
from project_service.settings import Settings

log = Logger()


def reread(
    settings: Settings,
    load: Callable[[], Settings],
    take_over: Callable[[Settings], None],
    configured: Settings | None = None,
) -> Settings | None:
    """The settings in force from now on; None where they stay as they are, for a reason that the log has.

    ``load`` raises ``BadSettings``; ``take_over``, as a rule ``KeySetError``, before it has changed anything.
    ``configured`` is what ``load`` gave at the start: what differs from it and waits for a restart is logged.
    """
    try:
        loaded = load()
        fresh = settings.changed_without_restart(loaded)
        take_over(fresh)
    except (BadSettings, KeySetError) as fault:
        log.error("the configuration was not reloaded: {fault}", fault=str(fault))
    except Exception:
        log.failure("the configuration was not taken over")
    else:
        waiting = configured.waiting_for_restart(loaded) if configured is not None else []
        if waiting:
            log.warn("changed, but in force only after a restart: {names}", names=", ".join(waiting))
        return fresh
    return None
