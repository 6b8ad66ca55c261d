"""Who a request acts as: the role for its transaction, and the claims SQL may read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from attrs import frozen

from project_service.errors import EXPIRED, ApiError
from project_service.http.caller import TokenVerifier
from project_service.settings.model import StageDatabase
from project_service.tables.access import errors
from project_service.tables.access.role_claim import RoleClaim
from project_service.tables.access.tokens import OwnTokens
from project_service.tables.failures import from_sqlstate

# SET ROLE none means the role of the connection itself, so a token that claims it must be refused.
_RESET = "none"


@frozen
class Identity:
    """Who a request acts as. ``claims`` is JSON. ``authenticated`` says that the role is not the anonymous one."""

    role: str
    claims: str
    authenticated: bool


@frozen
class Identities:
    """Tokens are verified by the database's own keys where it has any, else by the service's."""

    config: StageDatabase
    role_claim: RoleClaim
    own: OwnTokens | None
    service: TokenVerifier | None

    def identify(self, authorization: Sequence[str], presented_key: str | None, is_service: bool) -> Identity:
        """Who the request acts as, by its Authorization headers and project key.

        ``presented_key`` sent as a bearer token as well counts as no token, since clients of this ecosystem do that.
        Raises PGRST300, 301, 302 and 303, ``session_revoked`` for a token of the service's own, and 22023 for a role
        that cannot exist.
        """
        token = _bearer(authorization)
        claims: Mapping[str, Any] = {}
        if token is not None and token != presented_key:
            claims = self._claims(token)
        claimed = self.role_claim.of(claims)
        if is_service:
            role = self.config.service_role
        elif claimed == _RESET:
            raise from_sqlstate("22023", f'role "{claimed}" does not exist', None, None, False)
        elif claimed is not None:
            role = self.config.authenticated_role if claimed == "authenticated" else claimed
        elif self.config.anon_role:
            role = self.config.anon_role
        else:
            raise errors.anonymous_disabled()
        authenticated = role != self.config.anon_role
        if not claims:
            return _without_claims(role, authenticated)
        told = {**claims, "role": role if is_service or claimed is None else claimed}
        return Identity(role, _as_json(told), authenticated)

    def _claims(self, token: str) -> Mapping[str, Any]:
        if not token:
            raise errors.undecodable_token("Empty JWT is sent in Authorization header")
        if self.own is not None:
            return self.own.claims(token)
        if self.service is None:
            raise errors.no_jwt_secret()
        try:
            return self.service.verify(token).raw
        except ApiError as fault:
            raise _in_postgrests_words(fault) from None


def _in_postgrests_words(fault: ApiError) -> ApiError:
    """``fault`` as PGRST303 or 301, which make clients renew their token. ``session_revoked`` stays as it is."""
    if fault.code != "invalid_token":
        return fault
    if fault.message == EXPIRED:
        return errors.invalid_claims("JWT expired")
    return errors.undecodable_token(fault.message)


@lru_cache(maxsize=64)
def _without_claims(role: str, authenticated: bool) -> Identity:
    return Identity(role, _as_json({"role": role}), authenticated)


def _as_json(claims: Mapping[str, Any]) -> str:
    """The claims as JSON, also with integers beyond 64 bits. Raises PGRST301 for text that is not valid Unicode."""
    try:
        return orjson.dumps(claims).decode()
    except TypeError:
        pass
    try:
        found = json.dumps(claims, ensure_ascii=False, allow_nan=False)
        found.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        raise errors.undecodable_token("The claims cannot be read") from None
    return found


def _bearer(headers: Sequence[str]) -> str | None:
    """The token of the first bearer header; other schemes are ignored."""
    for value in headers:
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    return None
