"""The values that authentication works with: addresses, metadata, users and sessions, and what its repository takes
and gives. No Twisted, no database."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import orjson
from attrs import field, frozen
from email_validator import EmailNotValidError

from project_service.audit import Origin
from project_service.email_addresses import validated
from project_service.errors import validation_failed
from project_service.http.json_body import fits_64_bits, read_document
from project_service.lifecycle import timestamp

# The whole address (RFC 5321 section 4.5.3.1.3, without the angle brackets).
EMAIL_MAX_BYTES = 254
METADATA_MAX_BYTES = 16 * 1024
# It is in every access token, which has to fit into a header (``tokens.MAX_BYTES``).
APP_METADATA_MAX_BYTES = 1536
# What a new user's ``app_metadata`` says: how the user signs in.
APP_METADATA: Mapping[str, Any] = {"provider": "email", "providers": ["email"]}
Verdict = Literal["free", "busy", "refused"]
Outcome = Literal["failed", "released", "cleared"]
# What is e-mailed, each with a template of its name.
MailName = Literal[
    "recovery",
    "confirmation",
    "magic_link",
    "invitation",
    "email_change",
    "reauthentication",
    "already_registered",
]
# What a challenge is for. A change of address is confirmed from the new address, and from the current one too.
# "oauth" is the state of a sign-in by a provider, and "link" what begins to add an identity.
Purpose = (
    MailName | Literal["email_change_current", "pkce", "factor", "passkey", "passkey_new", "oauth", "link"]
)
# How somebody signed in, as the claim ``amr`` names it: "otp" is a code, or a token that confirms an address.
Method = Literal[
    "password",
    "otp",
    "magiclink",
    "recovery",
    "invite",
    "oauth",
    "anonymous",
    "totp",
    "webauthn",
]
# How a session begins with an answer to a challenge, and what the audit calls that.
ANSWERED: Mapping[Purpose, tuple[Method, str]] = {
    "confirmation": ("otp", "confirm_email"),
    "magic_link": ("magiclink", "login_by_email"),
    "recovery": ("recovery", "recover"),
    "invitation": ("invite", "accept_invitation"),
    "email_change": ("otp", "change_email"),
    "email_change_current": ("otp", "change_email"),
    "reauthentication": ("otp", "reauthenticate"),
}
# The purposes of what a new password can be set with.
FOR_PASSWORDS: tuple[Purpose, ...] = ("recovery", "invitation")
# The purposes of a change of address, each with the one that the other address confirms.
OF_CHANGE: Mapping[Purpose, Purpose] = {
    "email_change": "email_change_current",
    "email_change_current": "email_change",
}
# Wrong codes after which a challenge cannot be answered by a code any more.
MAX_TRIES = 5
# Sessions of one user that are listed. Each login starts one, for a month, so a client that never refreshes has any
# number of them.
MAX_LISTED_SESSIONS = 1000


def moment(seconds: float) -> datetime:
    """Unix time as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


@frozen
class Email:
    """An e-mail address. ``address`` is for showing and mailing; ``key`` is for comparing."""

    address: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Email:
        """An address; letters outside ASCII are allowed (RFC 6531), and DNS is not asked. Raises
        ``validation_failed``."""
        # Checked first, because the validator takes the longer the longer its input is.
        if len(text.encode("utf-8", "surrogatepass")) > EMAIL_MAX_BYTES:
            raise validation_failed({"email": f"must be at most {EMAIL_MAX_BYTES} bytes"})
        try:
            address = validated(text).normalized
        except (EmailNotValidError, UnicodeError):
            raise validation_failed({"email": "is not an e-mail address"}) from None
        return cls(address, folded(address))

    @classmethod
    def parse_new(cls, text: str) -> Email:
        """As ``parse``, for a new account, which has to be reachable by e-mail: the SMTP client does not support
        SMTPUTF8 (RFC 6531), so the part before the @ must be ASCII.
        """
        email = cls.parse(text)
        if not email.address.rpartition("@")[0].isascii():
            raise validation_failed({"email": "must be ASCII before the @"})
        return email


def folded(address: str) -> str:
    """The form in which equal addresses are equal: the part before the @ case-folded and composed (Unicode section
    3.13), the domain in lower case. Folding would turn ß into ss, which is another domain (RFC 5891).
    """
    local, at, domain = address.rpartition("@")
    return unicodedata.normalize("NFC", local.casefold()) + at + domain.lower()


def check_metadata(name: str, value: object) -> dict[str, Any]:
    """A user's metadata: what ``read_document`` takes, of at most ``METADATA_MAX_BYTES``; None means an empty one.
    Raises ``validation_failed`` for the member ``name``."""
    return {} if value is None else read_document(name, value, METADATA_MAX_BYTES)[0]


def check_app_metadata(name: str, value: object) -> dict[str, Any]:
    """As ``check_metadata``, of at most ``APP_METADATA_MAX_BYTES``."""
    return {} if value is None else read_document(name, value, APP_METADATA_MAX_BYTES)[0]


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` with the members of ``changes``; one that is None there is removed."""
    return {
        name: value
        for name, value in {**before, **changes}.items()
        if value is not None or name not in changes
    }


def load_metadata(text: str) -> dict[str, Any]:
    """The metadata ``text`` of the database. If it was written by SQL it may contain any number: an integer beyond 64
    bits becomes the nearest float, and one beyond all floats infinity, which is sent as null."""
    value: dict[str, Any]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # It has a number beyond all floats. The standard library can read it, but is too slow for all users'
        # metadata.
        value = json.loads(text, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    # Python refuses to convert very long texts to integers.
    number = int(digits) if len(digits) <= 20 else float(digits)
    return number if fits_64_bits(number) else float(number)


@frozen
class User:
    """A user, without what only the service and its operator may see (``Account``).

    ``metadata`` is the user's own to change; ``app_metadata`` only operators change. ``email`` is empty if the user
    has no address: somebody anonymous, or whose provider tells none.
    """

    id: str
    email: str
    created_at: datetime
    metadata: Mapping[str, Any] = field(factory=dict)
    app_metadata: Mapping[str, Any] = APP_METADATA
    updated_at: datetime | None = None
    confirmed_at: datetime | None = None
    last_login_at: datetime | None = None
    is_anonymous: bool = False

    @property
    def awaits_confirmation(self) -> bool:
        """Whether the address has to be confirmed where that is asked for. Who has logged in before is not locked
        out."""
        return self.confirmed_at is None and self.last_login_at is None

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "email": self.email,
            "created_at": timestamp(self.created_at),
            "metadata": dict(self.metadata),
        }


@frozen
class Account:
    """A user, with what only the service and its operator may see."""

    user: User
    password_hash: bytes = field(repr=False, default=b"")
    disabled_at: datetime | None = None
    disabled_until: datetime | None = None

    @property
    def confirmed_at(self) -> datetime | None:
        return self.user.confirmed_at

    @property
    def last_login_at(self) -> datetime | None:
        return self.user.last_login_at

    def view(self) -> dict[str, Any]:
        """What ``/admin/users`` and the command line show. It never contains the hash."""
        return {
            **self.user.view(),
            "disabled": self.disabled_at is not None,
            "email_confirmed": self.confirmed_at is not None,
            "last_login_at": None if self.last_login_at is None else timestamp(self.last_login_at),
        }


def email_of(user: User) -> Email:
    """The user's address as ``Email``; it was validated when it was stored. It may be empty, as ``User.email``."""
    return Email(user.email, folded(user.email))


@frozen
class Identity:
    """A user's way in: the e-mail address (``provider`` "email"), or an account with a provider, which calls the user
    ``subject`` and says ``data``."""

    id: str
    user_id: str
    provider: str
    subject: str
    data: Mapping[str, Any]
    last_sign_in_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def view(self) -> dict[str, Any]:
        """What the command line shows."""
        email = self.data.get("email")
        return {
            "id": self.id,
            "provider": self.provider,
            "subject": self.subject,
            "email": email if isinstance(email, str) else None,
            "created_at": timestamp(self.created_at),
        }


FactorType = Literal["totp", "webauthn"]


@frozen
class Factor:
    """What besides the way in shows who a user is. It counts once it ``is_verified``."""

    id: str
    user_id: str
    name: str
    type: FactorType
    is_verified: bool
    created_at: datetime
    updated_at: datetime

    def view(self) -> dict[str, Any]:
        """What clients and operators see of it."""
        return {
            "id": self.id,
            **({"friendly_name": self.name} if self.name else {}),
            "factor_type": self.type,
            "status": "verified" if self.is_verified else "unverified",
            "created_at": timestamp(self.created_at),
            "updated_at": timestamp(self.updated_at),
        }


@frozen
class Credential:
    """A key pair of a device of the user's (WebAuthn): what is known of it here. ``sign_count`` is how often it has
    signed, as the device says; 0 if it does not count."""

    id: bytes = field(repr=False)
    public_key: bytes = field(repr=False)
    sign_count: int = 0
    aaguid: str | None = None
    transports: tuple[str, ...] = ()
    is_backed_up: bool = False


@frozen
class Passkey:
    """A credential that its user signs in with."""

    id: str
    user_id: str
    name: str
    credential: Credential
    created_at: datetime
    last_used_at: datetime | None = None

    def view(self) -> dict[str, Any]:
        last = {} if self.last_used_at is None else {"last_used_at": timestamp(self.last_used_at)}
        created = timestamp(self.created_at)
        return {"id": self.id, "friendly_name": self.name, "created_at": created, **last}


@frozen
class OwnFactor:
    """A factor as its verification needs it: the secret of its codes, or its credential once it has one."""

    type: FactorType
    is_verified: bool
    secret: bytes | None = field(repr=False, default=None)
    credential: Credential | None = None


@frozen
class Profile:
    """An account with the user's ways in and further factors. ``sent`` says when something was mailed that can still
    be answered."""

    account: Account
    identities: tuple[Identity, ...] = ()
    factors: tuple[Factor, ...] = ()
    sent: Mapping[str, datetime] = field(factory=dict)
    new_email: str = ""
    invited_at: datetime | None = None

    @property
    def user(self) -> User:
        return self.account.user


@frozen
class SessionInfo:
    """One session of a user that goes on."""

    id: str
    created_at: datetime
    refreshed_at: datetime
    expires_at: datetime
    user_agent: str
    address: str

    def own_view(self, current: str) -> dict[str, Any]:
        """The session as ``/auth/sessions`` shows it to its user. ``current`` is the id of the session that makes the
        request, which is marked."""
        return {**self.view(), "current": self.id == current}

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "created_at": timestamp(self.created_at),
            "refreshed_at": timestamp(self.refreshed_at),
            "expires_at": timestamp(self.expires_at),
            "user_agent": self.user_agent,
            "address": self.address,
        }


@frozen
class IssuedSession:
    """What sign-up, login and refresh return: ``Session`` in ``/openapi.json``. ``expires_at`` is the Unix time at
    which the access token expires. ``provider_tokens`` are those of the provider that somebody came by:
    ``provider_token``, and ``provider_refresh_token`` if there is one."""

    user: User
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_at: int
    provider_tokens: Mapping[str, str] = field(factory=dict, repr=False)

    def view(self) -> dict[str, Any]:
        return {
            "user": self.user.view(),
            "access_token": self.access_token,
            "refresh_token": self.refresh_token,
            "expires_at": self.expires_at,
            "token_type": "Bearer",
        }


# What the repository takes and gives.


@frozen
class SignIn:
    """How and when a session began, and by which further factor its user was recognised then or later."""

    at: datetime
    method: Method = "password"
    factor: Method | None = None
    factor_at: datetime | None = None


@frozen
class NewSession:
    """A session to be stored. ``digest`` is that of its first refresh token."""

    id: str
    digest: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime
    access_expires_at: datetime
    origin: Origin = field(factory=Origin)
    method: Method = "password"
    factor: Method | None = None
    factor_at: datetime | None = None

    @property
    def began(self) -> SignIn:
        return SignIn(self.created_at, self.method, self.factor, self.factor_at)


def takes_over(purpose: Purpose, data: Mapping[str, Any], user: User) -> bool:
    """Whether an answer is the first to show whose the user's address is, so that what whoever signed up with it has
    set is void. A confirmation is that of the sign-up itself, unless its data has ``takes_over``.

    Where nobody confirms addresses, who has signed in keeps the password when they come by a code for once.
    """
    if user.confirmed_at is not None:
        return False
    by_code = user.last_login_at is None and (purpose == "magic_link" or "takes_over" in data)
    return by_code or purpose in ("recovery", "invitation")


@frozen
class NewChallenge:
    """What is asked of somebody, who answers it once: with the token of ``digest``, or with the code of ``code_hash``
    if there is one. ``data`` is what the answer goes on with.

    It is for the user of ``user_id``, else for the one with the address ``email``, to which it is sent. A user whose
    address is confirmed gets ``if_confirmed`` in place of ``purpose``, or nothing if that is None.
    """

    purpose: Purpose
    if_confirmed: Purpose | None
    digest: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime
    email: Email | None = None
    user_id: str | None = None
    code_hash: bytes | None = field(repr=False, default=None)
    data: Mapping[str, Any] = field(factory=dict)


@frozen
class Answer:
    """What somebody answers a challenge of one of ``purposes`` with: the digest of its token, or the code that was
    sent to ``email_key``, of which the hashes by each key are given. With ``user_id`` it has to be that user's."""

    purposes: tuple[Purpose, ...]
    digest: bytes | None = field(repr=False, default=None)
    email_key: str = ""
    code_hashes: tuple[bytes, ...] = field(repr=False, default=())
    user_id: str | None = None


@frozen
class AuthCode:
    """What the client that asked for a challenge exchanges for a session (RFC 7636), if it sent a code challenge.
    ``data`` is what the exchange goes on with."""

    digest: bytes = field(repr=False)
    expires_at: datetime
    data: Mapping[str, Any] = field(factory=dict, repr=False)


@frozen
class ByProvider:
    """Who came by a provider: what it says of them, and what becomes of that. ``is_verified`` says whether the
    provider has checked the address.

    A new user gets ``new_id`` and ``metadata``; with ``new_id`` None none is made. With ``confirm`` nobody gets in by
    an address that has yet to be confirmed.
    """

    provider: str
    subject: str
    email: Email | None
    is_verified: bool
    data: Mapping[str, Any] = field(repr=False)
    new_id: str | None = None
    metadata: Mapping[str, Any] = field(factory=dict, repr=False)
    confirm: bool = False


@frozen
class Redeemed:
    """A challenge that was answered, and its user as it is then, with the session that began, if one did. ``half``
    says that a change of address has to be confirmed from the other address too."""

    purpose: Purpose
    user: User
    data: Mapping[str, Any]
    session: NewSession | None = None
    half: bool = False


@frozen
class FactorProof:
    """What shows that a user has the factor of ``factor_id``, besides the answer to the challenge of ``challenge``:
    the code of a time step, or a recovery code of the digest ``recovery``; or a signature by ``credential``, as it is
    then."""

    user_id: str
    session_id: str
    factor_id: str
    challenge: bytes = field(repr=False)
    method: Method
    step: int | None = None
    recovery: bytes | None = field(repr=False, default=None)
    credential: Credential | None = None


@frozen
class Raised:
    """A session whose user was recognised by a further factor. ``ended`` are the user's other sessions that ended,
    each with the Unix time until which access tokens of it may be valid."""

    user: User
    began: SignIn
    ended: list[tuple[str, float]]


@frozen
class Limit:
    """Up to ``maximum`` failures within ``window``; 0 means no limit."""

    maximum: int
    window: timedelta


@frozen
class Reservation:
    """Whether an attempt may begin, and what identifies it.

    If ``verdict`` is "free" it is reserved. It is "busy" if attempts that are not finished yet use up the limit,
    "refused" if failures do; then the next attempt is possible after ``wait_seconds``.

    ``mark`` identifies the attempt in the counter of ``scope`` and ``subject``; None if there is no limit. A login
    has a second counter, by client address, and ``account`` is the one with its e-mail address.
    """

    verdict: Verdict
    wait_seconds: float
    mark: datetime | None
    scope: str
    subject: str
    address: str = ""
    address_mark: datetime | None = None
    account: Account | None = None

    @property
    def is_counted(self) -> bool:
        return self.mark is not None or self.address_mark is not None


@frozen
class Rotation:
    """What happened to a refresh token that was presented.

    ``rotated``: its successor is active now. ``repeated``: it was replaced a moment ago, or its successor was never
    used; ``salts``, by the digest of the token that each belongs to, lead to the active one. ``stolen``: it was used
    again otherwise, and the session has been ended.
    """

    outcome: Literal["rotated", "repeated", "stolen"]
    session_id: str
    user: User
    began: SignIn
    salts: Mapping[bytes, bytes] = field(factory=dict, repr=False)


@frozen
class Proof:
    """Why a user may change their account: the hash of the password that was sent, and the session that was used."""

    password_hash: bytes = field(repr=False)
    session_id: str
