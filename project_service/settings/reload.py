"""SIGHUP: the configuration is read again, and whatever may change without a restart is taken over, all or
nothing."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from project_service.auth.keyset import KeySetError
from project_service.settings.configure import BadSettings
from project_service.settings.model import Settings

log = Logger()


def reread(
    settings: Settings,
    load: Callable[[], Settings],
    take_over: Callable[[Settings], None],
    configured: Settings | None = None,
) -> Settings | None:
    """The settings in force from now on; None where they stay as they are, and then the log says why.

    ``settings`` are those in force now. ``load`` may raise ``BadSettings``. ``take_over`` may raise anything, usually
    ``KeySetError``, as long as it has changed nothing by then. ``configured`` is what ``load`` gave at the start;
    settings that differ from it but need a restart are named in the log.
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
