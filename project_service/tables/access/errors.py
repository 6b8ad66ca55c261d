"""Errors of group 3: tokens, and who may do without one."""

from __future__ import annotations

from project_service.errors import Headers
from project_service.tables.errors import TableError


def no_jwt_secret() -> TableError:
    return TableError(500, "PGRST300", "Server lacks JWT secret")


def _challenge(message: str) -> Headers:
    return (("WWW-Authenticate", f'Bearer error="invalid_token", error_description="{message}"'),)


def undecodable_token(message: str, details: str | None = None) -> TableError:
    return TableError(401, "PGRST301", message, details, headers=_challenge(message))


def no_key(details: str) -> TableError:
    return undecodable_token("No suitable key or wrong key type", details)


def anonymous_disabled() -> TableError:
    return TableError(
        401, "PGRST302", "Anonymous access is disabled", headers=(("WWW-Authenticate", "Bearer"),)
    )


def invalid_claims(message: str) -> TableError:
    return TableError(401, "PGRST303", message, headers=_challenge(message))
