"""The service's own settings: made once for a session, or for each transaction where sessions are a pooler's. Pure.

Behind a pooler that gives each transaction another session (PgBouncer's transaction mode), nothing that was set
before holds, and other callers may have left settings and a role. So each transaction begins with an ``Opening``.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from project_service.database.pipeline import Step
from project_service.database.quoting import ident, literal

_RESET = "RESET ALL"


def session_settings(settings: Mapping[str, str], local: bool = False) -> str:
    """What makes ``settings`` for a session or, with ``local``, for a transaction, as the expressions of a SELECT."""
    local_ = "true" if local else "false"
    return ", ".join(
        f"pg_catalog.set_config({literal(name)}, {literal(value)}, {local_})"
        for name, value in settings.items()
    )


@frozen
class Opening:
    """What a transaction begins with, in three forms: ``text`` for psycopg2, after which the isolation level can
    still be set; ``steps`` for a pipeline; and ``own``, without the reset, as the expressions of a SELECT."""

    text: str
    steps: tuple[Step, ...]
    own: str

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Opening:
        # SQL of the project may have left another role on the session.
        settings = {"role": "none", **settings}
        sets = "; ".join(f"SET LOCAL {ident(name)} TO {literal(value)}" for name, value in settings.items())
        own = session_settings(settings, local=True)
        steps = (Step(_RESET, once=True), Step(f"SELECT {own}"))
        return cls(f"{_RESET}; {sets}; ", steps, own)
