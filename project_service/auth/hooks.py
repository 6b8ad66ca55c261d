"""Hooks: what the project is asked before somebody becomes a user, for the claims of an access token, and to send an
e-mail in the service's place.

A hook is a function of the system database, ``(event jsonb) returns jsonb``, or an https address that is called with
a signature (Standard Webhooks). Events and replies are those of Supabase's "Auth Hooks". A hook that fails refuses:
what it was meant to prevent must not happen because it is away.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import orjson
import psycopg2
from attrs import define
from twisted.logger import Logger

from project_service.auth import errors
from project_service.database.acting import Actor
from project_service.database.quoting import ident
from project_service.lifecycle import timestamp
from project_service.outgoing import Outgoing, OutgoingFailed, Reply
from project_service.settings.model import Hooks as HookSettings
from project_service.settings.model import Secret

_log = Logger()

HookName = Literal["before_user_created", "custom_access_token", "send_email"]
# How events name the hooks.
_IN_EVENTS: Mapping[HookName, str] = {
    "before_user_created": "before-user-created",
    "custom_access_token": "customize-access-token",
    "send_email": "send-email",
}
# The longest that a hook may take, and the most that it may answer.
SECONDS = 5.0
MAX_REPLY_BYTES = 20 * 1024
_MESSAGE_MAX_CHARACTERS = 500
_REFUSAL = "This project refuses it."
# The claims that say what a token is for, whom, and how they signed in. A hook may neither change them nor leave them
# out.
FIXED_CLAIMS = (
    *("iss", "aud", "exp", "iat", "sub", "jti", "sid", "session_id", "aal", "amr", "act", "is_anonymous"),
)
# Those that it may change, but not leave out.
_NEEDED_CLAIMS = ("role", "email", "phone")


@define(eq=False)
class Hooks:
    """The hooks of ``settings()``, which are read again for each call. Each method but ``has`` raises
    ``hook_refused`` with the project's status and message, and ``hook_failed``; where there is no such hook it asks
    nobody."""

    settings: Callable[[], HookSettings]
    outgoing: Outgoing
    actor: Actor
    now: Callable[[], datetime]
    new_id: Callable[[], str]

    def has(self, name: HookName) -> bool:
        return getattr(self.settings(), name) is not None

    async def before_user_created(
        self, user: Mapping[str, Any], address: str | None, captcha_token: str | None = None
    ) -> None:
        """Returns if ``user``, in the form of clients of the Supabase family, may become one. ``address`` is the
        client's."""
        event = {"metadata": self._metadata("before_user_created", address), "user": dict(user)}
        if captcha_token is not None:
            event["metadata"]["captcha_token"] = captcha_token
        await self._ask("before_user_created", event)

    async def custom_access_token(
        self, claims: Mapping[str, Any], method: str, address: str | None
    ) -> Mapping[str, Any]:
        """The claims that the token is to have. ``method`` is how the user signed in, as in "amr", or
        ``token_refresh``."""
        if not self.has("custom_access_token"):
            return claims
        event = {
            "metadata": self._metadata("custom_access_token", address),
            "user_id": claims["sub"],
            "claims": dict(claims),
            "authentication_method": method,
        }
        changed = (await self._ask("custom_access_token", event)).get("claims")
        if not isinstance(changed, dict):
            raise _failed("custom_access_token", "answered without claims")
        wrong = [name for name in FIXED_CLAIMS if changed.get(name) != claims.get(name)]
        wrong += [name for name in _NEEDED_CLAIMS if not isinstance(changed.get(name), str)]
        if wrong:
            raise _failed("custom_access_token", f"changed or left out {', '.join(wrong)}")
        return changed

    async def send_email(self, user: Mapping[str, Any], email_data: Mapping[str, str]) -> None:
        """Returns when the hook has taken the e-mail over. ``email_data`` has ``token``, ``token_hash``,
        ``redirect_to``, ``email_action_type``, ``site_url``, ``token_new``, ``token_hash_new`` and ``old_email``."""
        event = {
            "metadata": self._metadata("send_email", None),
            "user": dict(user),
            "email_data": dict(email_data),
        }
        await self._ask("send_email", event)

    def too_large(self) -> Exception:
        """``hook_failed``, for claims that do not fit into a token."""
        return _failed("custom_access_token", "answered with more than fits into a token")

    def _metadata(self, name: HookName, address: str | None) -> dict[str, Any]:
        made = {"uuid": self.new_id(), "time": timestamp(self.now()), "name": _IN_EVENTS[name]}
        return made if address is None else {**made, "ip_address": address}

    async def _ask(self, name: HookName, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the hook answers; {} if there is none, or it answers nothing."""
        settings = self.settings()
        where: str | None = getattr(settings, name)
        if where is None:
            return {}
        status = 200
        try:
            if where.startswith("sql:"):
                answer = _object(await self._call_function(name, where.removeprefix("sql:"), event))
            else:
                secret: Secret = getattr(settings, f"{name}_secret")
                reply = await self._call_address(name, where, secret, event)
                status, answer = reply.status, _object_in(reply)
        except ValueError:
            raise _failed(name, "answered without a JSON object") from None
        if (refusal := answer.get("error")) is not None:
            raise _refusal(name, refusal, status)
        if status >= 300:
            raise _failed(name, f"answered {status}")
        return answer

    async def _call_function(self, name: HookName, where: str, event: Mapping[str, Any]) -> str:
        schema, _, function = where.partition(".")
        sql = f"select {ident(schema)}.{ident(function)}(%s::jsonb)::text"
        try:
            rows = await self.actor.query_unknown(sql, [orjson.dumps(event).decode()], SECONDS)
        except psycopg2.Error as fault:
            # What the server says may quote what was in the event.
            raise _failed(name, f"failed with SQLSTATE {fault.pgcode}") from None
        answer: str = "{}" if rows[0][0] is None else rows[0][0]
        if len(answer.encode()) > MAX_REPLY_BYTES:
            raise _failed(name, "answered too much")
        return answer

    async def _call_address(
        self, name: HookName, url: str, secret: Secret, event: Mapping[str, Any]
    ) -> Reply:
        body = orjson.dumps(event)
        message, seconds = self.new_id(), int(self.now().timestamp())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message,
            "webhook-timestamp": str(seconds),
            "webhook-signature": signature(secret, message, seconds, body),
        }
        try:
            return await self.outgoing.call(
                "POST", url, headers=headers, body=body, seconds=SECONDS, max_bytes=MAX_REPLY_BYTES
            )
        except OutgoingFailed as fault:
            raise _failed(name, f"cannot be used: {fault}") from None


def signature(secret: Secret, message: str, seconds: int, body: bytes) -> str:
    """The header ``webhook-signature``, one signature for each secret (Standard Webhooks, "Signature scheme")."""
    signed = f"{message}.{seconds}.".encode() + body
    made = []
    for one in secret.reveal().split("|"):
        key = b64decode(one.removeprefix("v1,whsec_"))
        made.append(f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}")
    return " ".join(made)


def _object_in(reply: Reply) -> Mapping[str, Any]:
    """The object that an address answers. A status of 300 and more may come with anything. Raises ``ValueError``."""
    if not reply.body.strip():
        return {}
    try:
        return _object(reply.body)
    except ValueError:
        if reply.status >= 300:
            return {}
        raise


def _object(text: str | bytes) -> Mapping[str, Any]:
    """An object in JSON. Raises ``ValueError``."""
    answer = orjson.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("no object")
    return answer


def _refusal(name: HookName, refusal: Any, status: int) -> Exception:
    """``hook_refused``, or ``hook_failed`` if it is not in the form of a refusal."""
    if not isinstance(refusal, dict):
        return _failed(name, "answered with an error that is no object")
    code = refusal.get("http_code", status if 400 <= status < 500 else 400)
    if not isinstance(code, int) or isinstance(code, bool) or not 400 <= code < 500:
        return _failed(name, "answered with an error whose http_code is not from 400 to 499")
    message = refusal.get("message")
    usable = isinstance(message, str) and message and len(message) <= _MESSAGE_MAX_CHARACTERS
    return errors.hook_refused(code, message if usable and isinstance(message, str) else _REFUSAL)


def _failed(name: HookName, why: str) -> Exception:
    _log.warn("the hook {name} {why}", name=name, why=why)
    return errors.hook_failed()
