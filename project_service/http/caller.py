"""The caller of a request: a project key, a verified user token, both or neither."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol
from uuid import UUID

from attrs import define, field, frozen

from project_service import errors
from project_service.http.head import HeaderView

KeyKind = Literal["anon", "service"]
# The claim ``act`` (RFC 8693 section 4.1) of a token that was made with the service key, to see what somebody sees;
# and the ``sub`` of one that is to see what nobody in particular does.
BY_SERVICE: Mapping[str, Any] = {"sub": "service"}
NOBODY = "00000000-0000-0000-0000-000000000000"


@frozen
class Claims:
    """A verified access token's claims. ``exp`` is Unix seconds; ``raw`` is the whole payload."""

    sub: str
    email: str
    role: str
    sid: str
    exp: int
    raw: Mapping[str, Any] = field(factory=dict, repr=False)

    @property
    def impersonates(self) -> bool:
        """Whether the token was made with the service key, to see what somebody sees. It has no session, and stands
        for the anon key too."""
        return self.raw.get("act") == BY_SERVICE

    @property
    def is_nobody(self) -> bool:
        """Whether it is to see what somebody sees who is not signed in."""
        return self.sub == NOBODY and self.impersonates


@frozen
class Caller:
    """``key`` is the kind of the project key sent, ``user`` the signed-in end user."""

    key: KeyKind | None = None
    user: Claims | None = None

    @property
    def user_id(self) -> UUID | None:
        return None if self.user is None else UUID(self.user.sub)

    @property
    def is_service(self) -> bool:
        return self.key == "service"

    @property
    def signed_in(self) -> bool:
        """A user token, or the service key, which passes wherever a signed-in user is asked for."""
        return self.user is not None or self.is_service


class TokenVerifier(Protocol):
    def verify(self, token: str) -> Claims:
        """The claims of a valid access token; raises ``invalid_token`` or ``session_revoked``."""


class Revocations(Protocol):
    """Whether the key ring and the verifier know what other processes have revoked."""

    @property
    def current(self) -> bool:
        """Whether everything that was revoked more than a second ago is known."""

    async def catch_up(self) -> None:
        """Returns when ``current`` is true again; raises ``database_unavailable``, or a failure of the database."""


@define(eq=False)
class KeyUse:
    """Whether a project key has been used since that was last stored."""

    used: bool = False


class KeyRing(Protocol):
    @property
    def active(self) -> object:
        """What ``kind_of`` depends on: another object after keys were made or revoked."""

    def kind_of(self, presented: str) -> KeyKind | None:
        """The kind of an active project key, or None. Constant time, no I/O."""

    def use_of(self, presented: str) -> KeyUse:
        """Where the use of an active key is noted; the same object each time."""

    def mistyped(self, presented: str) -> bool:
        """Whether the text itself shows, by its checksum, that it was never a key of any project."""


KeyDemand = Literal["ignored", "optional", "required", "service"]
BearerDemand = Literal["optional", "required", "own"]


@frozen
class Access:
    """What a route demands of its caller before its handler runs.

    ``key="service"`` demands the service key, and with ``key="ignored"`` none is looked at, not even a wrong one.
    ``bearer="own"`` leaves the Authorization header to the route itself. With ``key_anywhere`` the key may also be
    the bearer token, or be in the query (``Callers.with_key``); and a bearer token decides who calls, so the service
    key beside one is worth no more than the anon key.
    """

    key: KeyDemand = "required"
    bearer: BearerDemand = "optional"
    key_anywhere: bool = False


def bearer_token(headers: HeaderView) -> str | None:
    """The token of ``Authorization: Bearer``, or None without that header (RFC 6750 section 2.1).

    Another scheme, a repeated header or an empty token raises ``invalid_token``.
    """
    values = headers.all(b"authorization")
    if not values:
        return None
    if len(values) > 1:
        raise errors.invalid_token("There is more than one Authorization header.")
    scheme, _, token = values[0].partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or not token.isascii():
        raise errors.invalid_token("The Authorization header does not hold a bearer token.")
    return token.decode("ascii")


def presented_key(headers: HeaderView) -> str | None:
    """The project key of ``X-Service-Key`` or its alias ``apikey``; two that differ are refused."""
    values = {*headers.all(b"x-service-key"), *headers.all(b"apikey")}
    if not values:
        return None
    if len(values) > 1:
        raise errors.project_key_invalid("There are two project keys, and they differ.")
    return values.pop().decode("latin-1")


def digest(key: str) -> bytes:
    """The SHA-256 of a project ``key``, by which it is known."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bearer_as_key(headers: HeaderView) -> HeaderView:
    values = headers.all(b"authorization")
    scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return _with_apikey(headers, key.strip()) if scheme.lower() == b"bearer" else headers


def _with_apikey(headers: HeaderView, key: bytes) -> HeaderView:
    kept = [
        pair for pair in headers if pair[0] != b"authorization" or pair[1].partition(b" ")[2].strip() != key
    ]
    view = HeaderView([*kept, (b"apikey", key)])
    view.arrival = headers.arrival
    return view


def identify(access: Access, headers: HeaderView, keys: KeyRing, tokens: TokenVerifier) -> Caller:
    """The caller; raises the ``ApiError`` that says what is missing or wrong. Keys are checked before tokens."""
    if access.key == "ignored":
        return Caller()
    presented = headers.derived(presented_key)
    if presented is None and access.key == "required" and _impersonates(headers, tokens):
        kind: KeyKind | None = "anon"
    else:
        kind = _key_kind(access.key, presented, keys)
    if access.key_anywhere and kind == "service" and _has_token(headers, presented):
        kind = "anon"
        if access.key == "service":
            raise errors.service_key_required()
    if access.bearer == "own":
        return Caller(key=kind)
    token = headers.derived(bearer_token)
    # Clients of this ecosystem repeat the project key as the bearer token when nobody is signed in.
    if token is not None and token != presented:
        user = tokens.verify(token)
        if not user.is_nobody:
            return Caller(key=kind, user=user)
    caller = Caller(key=kind)
    if access.bearer == "required" and not (caller.is_service and access.key != "optional"):
        raise errors.authentication_required()
    return caller


def _impersonates(headers: HeaderView, tokens: TokenVerifier) -> bool:
    """Whether there is a valid token that was made with the service key. Without one a key is missing, whatever else
    is wrong with the token."""
    if b"authorization" not in headers:
        return False
    try:
        token = headers.derived(bearer_token)
        return token is not None and tokens.verify(token).impersonates
    except errors.ApiError:
        return False


def _has_token(headers: HeaderView, key: str | None) -> bool:
    """Whether a bearer is there that is not the ``key`` again."""
    values = headers.all(b"authorization")
    return bool(values) and values[0].partition(b" ")[2].strip().decode("latin-1") != key


def _key_kind(demand: KeyDemand, presented: str | None, keys: KeyRing) -> KeyKind | None:
    if presented is None:
        if demand == "optional":
            return None
        raise errors.project_key_required()
    kind = keys.kind_of(presented)
    if kind is None:
        if keys.mistyped(presented):
            raise errors.project_key_invalid("The project key is mistyped or cut short.")
        raise errors.project_key_invalid()
    if demand == "service" and kind != "service":
        raise errors.service_key_required()
    return kind


@frozen
class _Cached:
    """A caller, and what it follows from besides the header lines."""

    access: Access
    active: object
    token: str | None
    caller: Caller
    use: KeyUse


@frozen
class Callers:
    """Identifies callers by keys and sessions that are current."""

    keys: KeyRing
    tokens: TokenVerifier
    revocations: Revocations

    def with_key(self, access: Access, headers: HeaderView, in_query: str | None) -> HeaderView:
        """The headers, with the project key in ``apikey`` where it is in the query alone, or in the place of a bearer
        token. It is not left in Authorization, where what reads headers would take it for a token.

        Where no key is needed, a bearer that is no key is left as the token that it may be.
        """
        if in_query is not None:
            return _with_apikey(headers, in_query.encode("utf-8"))
        if b"apikey" in headers.first or b"x-service-key" in headers.first:
            return headers
        moved = headers.derived(_bearer_as_key)
        if access.key == "optional" and moved is not headers:
            presented = moved.derived(presented_key)
            return headers if presented is None or self.keys.kind_of(presented) is None else moved
        return moved

    def at_once(self, access: Access, headers: HeaderView) -> Caller | None:
        """As ``identify``, but without waiting. None if the list of revocations has to be refreshed first, which is
        rare; then call ``identify``."""
        if self.revocations.current:
            cached: _Cached | None = headers.caller
            if (
                cached is not None
                and cached.access is access
                and cached.active is self.keys.active
                and (cached.token is None or self.tokens.verify(cached.token) is cached.caller.user)
            ):
                cached.use.used = True
                return cached.caller
            return self._identified(access, headers)
        if not any(name in headers for name in (b"x-service-key", b"apikey", b"authorization")):
            return self._identified(access, headers)
        if access.key == "ignored" or (access.key == "optional" and access.bearer == "own"):
            # Anybody may call: ``/live`` never waits, nor does it refuse a key that cannot be looked up now.
            return Caller()
        return None

    async def identify(self, access: Access, headers: HeaderView) -> Caller:
        """The caller. Raises what the function ``identify`` raises, and what ``Revocations.catch_up`` does."""
        if not self.revocations.current:
            await self.revocations.catch_up()
        return self._identified(access, headers)

    def _identified(self, access: Access, headers: HeaderView) -> Caller:
        """As the function ``identify``; cached with the header lines until keys change. A token is verified again
        each time that these lines come."""
        caller = identify(access, headers, self.keys, self.tokens)
        # Looked at only where it counts: a key that is ignored may be anything.
        presented = None if access.key == "ignored" else headers.derived(presented_key)
        token = None if access.key == "ignored" or access.bearer == "own" else headers.derived(bearer_token)
        stands_for_key = caller.key is not None and presented is None
        is_nobodys = caller.user is None and token is not None and token != presented
        if stands_for_key or is_nobodys:
            return caller  # it says nothing of the token, which has to be verified each time
        if caller.user is None:
            token = None
        use = KeyUse() if presented is None else self.keys.use_of(presented)
        use.used = True
        headers.caller = _Cached(access, self.keys.active, token, caller, use)
        return caller
