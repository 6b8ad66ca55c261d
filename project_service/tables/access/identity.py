"""Who a request acts as: the role for its transaction, and the claims SQL may read."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from project_service.tables.incoming import Sent

# SET ROLE none means the role of the connection itself, so a token that claims it must be refused.
_RESET = "none"


@frozen
class Identity:
    """Who a request acts as. ``claims`` is JSON. ``authenticated`` says that the role is not the anonymous one."""

    role: str
    claims: str
    authenticated: bool


_NO_CLAIMS: Mapping[str, Any] = {}


@frozen
class _Known:
    """The identity that followed from these claims, which are kept with the token that they were verified of."""

    claims: Mapping[str, Any]
    is_service: bool
    identity: Identity


@frozen
class Identities:
    """Tokens are verified by the database's own keys where it has any, else by the service's."""

    config: StageDatabase
    role_claim: RoleClaim
    own: OwnTokens | None
    service: TokenVerifier | None

    def identify(self, sent: Sent, is_service: bool) -> Identity:
        """Who the request acts as, by its bearer token and project key. The token is verified each time.

        Raises PGRST300, 301, 302 and 303, ``session_revoked`` for a token of the service's own, and 22023 for a role
        that cannot exist.
        """
        claims = _NO_CLAIMS if sent.bearer is None else self._claims(sent.bearer)
        known: _Known | None = sent.identity
        if known is None or known.claims is not claims or known.is_service is not is_service:
            known = sent.identity = _Known(claims, is_service, self._identity(claims, is_service))
        return known.identity

    def _identity(self, claims: Mapping[str, Any], is_service: bool) -> Identity:
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
