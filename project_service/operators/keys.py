"""``/admin/keys``: the project keys that clients send, and the keys that sign access tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from project_service import audit, keys
from project_service.audit import Rows
from project_service.auth import tokens
from project_service.auth.tokens import ALGORITHMS, KeySet, KeySetError
from project_service.auth.values import moment
from project_service.errors import require_text, validation_failed
from project_service.http.caller import KeyKind, presented_key
from project_service.http.describe import (
    BOOLEAN,
    JSON,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    exactly,
    in_path,
)
from project_service.http.json_body import FLAG, TEXT, Kind, body_of, member, whole
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import InThread, timestamp
from project_service.operators import errors
from project_service.operators.sql import Audited
from project_service.settings.model import Auth

TAG = "keys"
MAX_KEPT, KEPT = 100, 2

_KIND: Schema = {"enum": ["anon", "service"]}
_MOMENT_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
_MEMBERS: dict[str, Schema] = {
    "id": UUID,
    "kind": _KIND,
    "label": STRING,
    "created_at": MOMENT,
    "revoked_at": _MOMENT_OR_NULL,
    # To the minute, and up to a minute late.
    "used_at": _MOMENT_OR_NULL,
}
_KEY = Named("ProjectKey", exactly(**_MEMBERS, current=BOOLEAN))
_NEW_KEY = Named("NewProjectKey", exactly(**_MEMBERS, key=STRING))
_SIGNING = Named(
    "SigningKey",
    exactly(
        kid=STRING,
        algorithm={"enum": list(ALGORITHMS)},
        state={"enum": ["signs", "verifies"]},
        created_at=_MOMENT_OR_NULL,
    ),
)
_SIGNING_KEYS = exactly(keys=array(_SIGNING))


def _answer(summary: str, schema: Schema | Named, status: int = 200) -> Answer:
    return Answer(status, summary, {JSON: schema}, {"Cache-Control": "no-store"})


def _kind(name: str, value: object) -> KeyKind:
    if value not in ("anon", "service"):
        raise validation_failed({name: "must be anon or service"})
    return value


def _label(name: str, value: object) -> str:
    label = require_text(name, value)
    if not label.isprintable() or len(label) > keys.LABEL_MAX:
        raise validation_failed(
            {name: f"must be printable, on one line, with at most {keys.LABEL_MAX} characters"}
        )
    return label


def _algorithm(name: str, value: object) -> str:
    if value not in ALGORITHMS:
        raise validation_failed({name: f"must be one of {', '.join(ALGORITHMS)}"})
    return str(value)


@frozen
class NewKey:
    """The body that makes a project key."""

    kind: KeyKind = member(Kind(_KIND, _kind))
    label: str = member(
        Kind({"type": "string", "maxLength": keys.LABEL_MAX}, _label),
        default="",
        schema={"description": "What the list shows the key with, such as its use."},
    )


@frozen
class Rotation:
    """The body that lets another key sign."""

    algorithm: str | None = member(
        Kind({"enum": list(ALGORITHMS)}, _algorithm),
        default=None,
        schema={"description": "Of the new key; auth.jwt_algorithm by default."},
    )
    keep: int = member(
        whole(0, MAX_KEPT),
        default=KEPT,
        schema={"description": "How many older keys still verify. With 0 no token is valid any more."},
    )
    announce: bool = member(
        FLAG, default=False, schema={"description": "The new key only verifies, until kid lets it sign."}
    )
    kid: str | None = member(
        TEXT, default=None, schema={"description": "Let this key sign, in place of a new one."}
    )


@frozen(eq=False)
class ProjectKeyRoutes:
    rows: Rows
    audited: Audited
    random: Callable[[int], bytes]

    @endpoint(
        "GET",
        "/admin/keys",
        Operation(
            "listKeys",
            TAG,
            "Every project key, revoked ones too, without the keys themselves, the oldest first",
            (_answer("The keys", exactly(keys=array(_KEY))),),
            details="used_at is when it was last used, to the minute and up to a minute late; current is the key "
            "that the request came with.",
        ),
    )
    async def list(self, request: Request) -> Reply:
        own = await self._own(request)
        records = await keys.listed(self.rows)
        return _reply({"keys": [{**asdict(one), "current": one.id == own} for one in records]})

    @endpoint(
        "POST",
        "/admin/keys",
        Operation(
            "createKey",
            TAG,
            "Make a project key, which is shown this once",
            (_answer("The new key", _NEW_KEY, 201),),
            body=body_of(NewKey),
        ),
    )
    async def create(self, request: Request) -> Reply:
        body = await request.read_json(NewKey)
        key = keys.make(body.kind, self.random)
        event = audit.by_service(request, self.audited.moment, "create_key", "")
        record = await keys.store(self.rows, body.kind, key, body.label, event)
        return _reply({**asdict(record), "key": key}, 201)

    @endpoint(
        "DELETE",
        "/admin/keys/<key_id>",
        Operation(
            "revokeKey",
            TAG,
            "Revoke a project key, everywhere within a second",
            (Answer(204, "It is revoked."),),
            (
                in_path("key_id", "The id of a listed key."),
                Parameter("force", "true: also the key that the request itself came with.", BOOLEAN),
            ),
            errors=(errors.key_not_found(), errors.key_in_use()),
        ),
    )
    async def revoke(self, request: Request) -> Reply:
        key_id, force = request.path_args["key_id"].lower(), request.query_value("force")
        if force not in (None, "true", "false"):
            raise validation_failed({"force": "must be true or false"})
        if "\0" in key_id:
            raise errors.key_not_found()
        if force != "true" and key_id == await self._own(request):
            raise errors.key_in_use()
        event = audit.by_service(request, self.audited.moment, "revoke_key", key_id)
        if not await keys.revoke(self.rows, key_id, event):
            raise errors.key_not_found()
        return Reply(204)

    async def _own(self, request: Request) -> str | None:
        """The id of the key that the request came with."""
        key = presented_key(request.headers)
        return None if key is None else await keys.id_of(self.rows, key)


@frozen(eq=False)
class SigningKeyRoutes:
    """``in_force`` returns the keys of this process. ``in_thread`` runs a function that blocks. ``reload`` has all
    processes read their configuration again, with the file of the keys."""

    settings: Callable[[], Auth]
    in_force: Callable[[], KeySet]
    in_thread: InThread
    reload: Callable[[], None]
    audited: Audited

    @endpoint(
        "GET",
        "/admin/keys/signing",
        Operation(
            "listSigningKeys",
            TAG,
            "The keys of access tokens: the first one signs, all of them verify",
            (_answer("The keys", _SIGNING_KEYS),),
            details="created_at is null for keys that were made before that was noted, or elsewhere.",
            needs=(),
        ),
    )
    async def list(self, request: Request) -> Reply:
        return _reply(_view(self.in_force()))

    @endpoint(
        "POST",
        "/admin/keys/signing/rotate",
        Operation(
            "rotateSigningKeys",
            TAG,
            "Let another key sign, and reload the configuration",
            (_answer("The keys, as every process has them in a moment", _SIGNING_KEYS),),
            body=body_of(Rotation),
            errors=(errors.signing_keys_not_writable(),),
            details="It changes the file on this host. With several hosts, announce the new key first, copy the file "
            "and let the key sign when all of them have reloaded.",
        ),
    )
    async def rotate(self, request: Request) -> Reply:
        body = await request.read_json(Rotation)
        if body.announce and body.kid is not None:
            raise validation_failed({"kid": "does not go with announce, which makes a new key"})
        settings = self.settings()
        assert settings.jwt_keys_file is not None
        path, algorithm = Path(settings.jwt_keys_file), body.algorithm or settings.jwt_algorithm
        before = self.in_force().signing.kid
        try:
            rotated = await self.in_thread(
                partial(tokens.change_keys, path, algorithm, body.keep, announce=body.announce, kid=body.kid)
            )
        except OSError as fault:
            raise errors.signing_keys_not_writable(fault.strerror or type(fault).__name__) from None
        except KeySetError as fault:
            if body.kid is not None and f"has no key {body.kid}" in str(fault):
                raise validation_failed({"kid": "is none of the file's keys"}) from None
            raise errors.signing_keys_not_writable(f"it {fault}") from None
        new = next((key.kid for key in rotated.keys if self.in_force().find(key.kid) is None), before)
        await self.audited.record(request, body.kid or new, action="rotate_signing_key")
        self.reload()
        return _reply(_view(rotated))


def _view(keys: KeySet) -> dict[str, Any]:
    return {
        "keys": [
            {
                "kid": key.kid,
                "algorithm": key.algorithm,
                "state": "signs" if key is keys.signing else "verifies",
                "created_at": None if key.created_at is None else timestamp(moment(key.created_at)),
            }
            for key in keys.keys
        ]
    }


def _reply(value: object, status: int = 200) -> Reply:
    return json_reply(value, status, (NO_STORE,))
