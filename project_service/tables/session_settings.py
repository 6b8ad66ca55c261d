"""What a request's transaction is told: search path, role, claims and the request itself."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from project_service.tables.call import Call
from project_service.tables.catalog.model import Routine, SchemaCache
from project_service.tables.config import TablesConfig
from project_service.tables.identity import Identity
from project_service.tables.parse.request import Head
from project_service.tables.run import Preamble
from project_service.tables.sql.settings import (
    RESET,
    pre_request_text,
    routine_settings,
    search_path,
    settings_text,
)

_LEVELS = ("serializable", "repeatable read", "read committed", "read uncommitted")
# Project keys are for this service, not for SQL to read.
_SECRET_HEADERS = ("x-service-key", "apikey", "cookie")


def preamble(
    config: TablesConfig,
    cache: SchemaCache,
    call: Call,
    head: Head,
    identity: Identity,
    read_only: bool,
    routine: Routine | None,
) -> Preamble:
    """What an earlier request may have left is reset, then one SELECT of settings, and the call of the pre-request
    function where there is one."""
    pairs = [
        *_limits(config),
        ("search_path", search_path(head.schema, config.extra_search_path)),
        *cache.role_settings.get(identity.role, ()),
        ("role", identity.role),
        ("request.jwt.claims", identity.claims),
        ("request.method", head.method),
        ("request.path", call.resource),
        ("request.headers", _headers(call.headers)),
        ("request.cookies", _cookies(call.headers)),
    ]
    if read_only:
        pairs.append(("transaction_read_only", "on"))
    timezone = head.preferences.get("timezone")
    if timezone is not None:
        pairs.append(("timezone", timezone))
    if routine is not None:
        pairs.extend(routine_settings(routine.settings))
    pairs.extend((f"app.settings.{name}", value) for name, value in config.app_settings.items())
    text = RESET + _isolation(pairs) + settings_text(tuple(name for name, _ in pairs))
    if config.pre_request is not None:
        text += "; " + pre_request_text(config.pre_request)
    return Preamble(text, [value for _, value in pairs])


def _limits(config: TablesConfig) -> list[tuple[str, str]]:
    return [("statement_timeout", config.statement_timeout)] if config.statement_timeout is not None else []


def _isolation(pairs: Iterable[tuple[str, str]]) -> str:
    """A role's or function's isolation level, which has to be set before anything else is done."""
    level = dict(pairs).get("default_transaction_isolation")
    return f"SET TRANSACTION ISOLATION LEVEL {level.upper()}; " if level in _LEVELS else ""


def _headers(headers: Iterable[tuple[str, str]]) -> str:
    found: dict[str, str] = {}
    for name, value in headers:
        if name not in _SECRET_HEADERS:
            found[name] = f"{found[name]}, {value}" if name in found else value
    return orjson.dumps(found).decode()


def _cookies(headers: Iterable[tuple[str, str]]) -> str:
    found: dict[str, str] = {}
    for name, value in headers:
        if name == "cookie":
            for piece in value.split(";"):
                key, _, content = piece.strip().partition("=")
                if key:
                    found[key] = content
    return orjson.dumps(found).decode()
