"""``/admin/mail``: what would have been sent, where e-mails are written to a folder and not to a mail server.

The e-mails have links and codes that sign people in, so that they are for the service key alone and never cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email import policy
from email.errors import MessageError
from email.message import EmailMessage, Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from project_service.auth.mail import STORED_ID, MailFolder
from project_service.errors import validation_failed
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    MOMENT,
    STRING,
    Answer,
    Named,
    Operation,
    Parameter,
    array,
    exactly,
    in_path,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import InThread
from project_service.operators import errors
from project_service.whole_numbers import from_digits

TAG = "operators"
PAGE, MAX_PAGE = 50, 200
# More of a file is not read: the service writes nothing as large, but it is only a folder.
MAX_BYTES = 2 * 1024 * 1024
# What has the headers.
HEAD_BYTES = 32 * 1024
# Of a header, so that a list stays small; and so many are shown, since each is looked for among all.
MAX_HEADER = 1000
MAX_HEADERS = 100

_TEXT_OR_NULL = {"type": ["string", "null"]}
_SHORT = {
    "id": {"type": "string", "pattern": f"^{STORED_ID.pattern}$"},
    "to": STRING,
    "subject": STRING,
    "sent_at": MOMENT,
}
MAIL = Named("StoredMail", exactly(**_SHORT))
WHOLE_MAIL = Named(
    "WholeStoredMail",
    exactly(
        **_SHORT,
        headers=array(exactly(name=STRING, value=STRING)),
        text=_TEXT_OR_NULL,
        html=_TEXT_OR_NULL,
        cut=BOOLEAN,
    ),
)
# Files that are not a message, or one that the library cannot read.
_BROKEN = (MessageError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


@frozen(eq=False)
class Mails:
    """``folder`` returns where e-mails are written; None where they are not."""

    folder: Callable[[], MailFolder | None]
    in_thread: InThread

    @endpoint(
        "GET",
        "/admin/mail",
        Operation(
            "listMails",
            TAG,
            "E-mails that would have been sent, the newest first",
            (Answer(200, "A page of them", {JSON: exactly(mails=array(MAIL), next=_TEXT_OR_NULL)}),),
            (
                Parameter(
                    "limit", f"How many; {PAGE} by default.", {**COUNT, "minimum": 1, "maximum": MAX_PAGE}
                ),
                Parameter("before", "`next` of the page before."),
            ),
            errors=(errors.mails_not_kept(),),
            details="Only where `smtp.mail_dir` is set and `smtp.host` is not, as with an embedded database. The "
            "last 1,000 are kept.",
        ),
    )
    async def list(self, request: Request) -> Reply:
        folder = self._folder()
        limit = _limit(request)
        before = request.query_value("before")
        if before is not None and not STORED_ID.fullmatch(before):
            raise validation_failed({"before": "is not the `next` of a page"})
        files = await self.in_thread(lambda: folder.newest(limit + 1, before))
        shown = files[:limit]
        mails = await self.in_thread(lambda: list(_listed(shown)))
        following = shown[-1].stem if len(files) > limit else None
        return json_reply({"mails": mails, "next": following}, headers=(NO_STORE,))

    @endpoint(
        "GET",
        "/admin/mail/<id>",
        Operation(
            "showMail",
            TAG,
            "One of them",
            (Answer(200, "The e-mail", {JSON: WHOLE_MAIL}),),
            (in_path("id", "The id of the e-mail."),),
            errors=(errors.mails_not_kept(), errors.mail_not_found()),
            details="`text` and `html` are its parts, null if it has none. `cut`: it has more than 2 MiB, and its "
            "end is missing. It may have a link or a code that signs somebody in.",
        ),
    )
    async def show(self, request: Request) -> Reply:
        folder = self._folder()
        file = folder.stored(request.path_args["id"])
        try:
            if file is None:
                raise FileNotFoundError
            mail = await self.in_thread(lambda: _whole(file))
        except OSError:
            raise errors.mail_not_found() from None
        return json_reply(mail, headers=(NO_STORE,))

    def _folder(self) -> MailFolder:
        folder = self.folder()
        if folder is None:
            raise errors.mails_not_kept()
        return folder


def _limit(request: Request) -> int:
    given = request.query_value("limit")
    limit = PAGE if given is None else from_digits(given)
    if limit is None or not 1 <= limit <= MAX_PAGE:
        raise validation_failed({"limit": f"must be a whole number from 1 to {MAX_PAGE}"})
    return limit


def _listed(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        # It may have been removed meanwhile.
        with suppress(OSError):
            yield _short(file, _read(file, HEAD_BYTES)[0])


def _read(file: Path, size: int) -> tuple[Message[str, str], bool]:
    """The message at the beginning of a file, whatever is in it, and whether there is more. Raises ``OSError``."""
    with file.open("rb") as opened:
        content = opened.read(size + 1)
    return _parsed(content[:size]), len(content) > size


def _parsed(content: bytes) -> Message[str, str]:
    try:
        return cast("Message[str, str]", BytesParser(policy=policy.default).parsebytes(content))
    except _BROKEN:
        return EmailMessage()


def _short(file: Path, message: Message[str, str]) -> dict[str, Any]:
    return {
        "id": file.stem,
        "to": _header(message, "To"),
        "subject": _header(message, "Subject"),
        "sent_at": _moment(file),
    }


def _moment(file: Path) -> str:
    try:
        moment = datetime.strptime(file.stem[:22], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
    except ValueError:  # digits that are no date
        moment = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _whole(file: Path) -> dict[str, Any]:
    message, is_cut = _read(file, MAX_BYTES)
    return {
        **_short(file, message),
        "headers": [{"name": _text(name), "value": _header(message, name)} for name in _names(message)],
        "text": _part(message, "plain"),
        "html": _part(message, "html"),
        "cut": is_cut,
    }


def _names(message: Message[str, str]) -> list[str]:
    try:
        return list(dict.fromkeys(name.title() for name in message.keys()))[:MAX_HEADERS]  # noqa: SIM118  # it is no dict
    except _BROKEN:
        return []


def _header(message: Message[str, str], name: str) -> str:
    try:
        return _text(", ".join(str(value) for value in message.get_all(name, [])))[:MAX_HEADER]
    except _BROKEN:
        return ""


def _part(message: Message[str, str], kind: str) -> str | None:
    try:
        body = cast(EmailMessage, message).get_body((kind,))
        return None if body is None else _text(str(body.get_content()).replace("\r\n", "\n"))
    except _BROKEN:
        return None


def _text(text: str) -> str:
    """It may have surrogates in place of bytes that are no characters."""
    return text.encode("utf-8", "replace").decode()
