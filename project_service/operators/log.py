"""``GET /admin/log``: the last lines of the log of all processes of this service."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

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
    Schema,
    array,
    exactly,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply
from project_service.http.routing import endpoint
from project_service.kept_log import LEVELS, MAX_ANSWERED, LogQuery, ReadLog
from project_service.operators import errors
from project_service.settings.model import Settings
from project_service.whole_numbers import from_digits

TAG = "operators"
MAX_TEXT = 200

_TEXT: Schema = {"type": "string", "maxLength": MAX_TEXT}
_OR_NULL = {"type": ["string", "null"]}
LINE = Named(
    "LogLine",
    exactly(
        number=COUNT,
        time={**MOMENT, "type": ["string", "null"]},
        level={"enum": list(LEVELS)},
        part=STRING,
        text=STRING,
        request_id=_OR_NULL,
    ),
)
_PARAMETERS = (
    Parameter("level", "The least level.", {"enum": list(LEVELS)}),
    Parameter("part", "What the name of the part begins with, such as project_service.auth.", _TEXT),
    Parameter("request_id", "Lines of this request.", _TEXT),
    Parameter("text", "Lines that contain this, whatever its case.", _TEXT),
    Parameter("without", "Lines that contain none of these, with `|` between.", _TEXT),
    Parameter("after", "`newest` of an earlier answer: lines that have come since.", _TEXT),
    Parameter("before", "`oldest` of an earlier answer: lines before those.", _TEXT),
    Parameter("limit", "Of more lines, the last ones; 200 by default.", {**COUNT, "maximum": MAX_ANSWERED}),
)


@frozen(eq=False)
class Log:
    settings: Callable[[], Settings]
    read: ReadLog

    @endpoint(
        "GET",
        "/admin/log",
        Operation(
            "log",
            TAG,
            "The last lines of the log",
            (
                Answer(
                    200,
                    "The lines, the oldest first",
                    {JSON: exactly(lines=array(LINE), newest=STRING, oldest=_OR_NULL, complete=BOOLEAN)},
                ),
            ),
            _PARAMETERS,
            errors=(errors.log_not_shown(), errors.log_unavailable()),
            details="The last 10,000 lines of all processes, without secrets, as they are written. Ask with `after` "
            "every second or two for those that have come; where `complete` is false, there were more than "
            "`limit`, or the service has been started again. A line that has no time was not written by the "
            "service's own log.",
        ),
    )
    async def show(self, request: Request) -> Reply:
        if not self.settings().server.console_log:
            raise errors.log_not_shown()
        try:
            answer = await self.read(_query(request))
        except TimeoutError:
            raise errors.log_unavailable() from None
        return Reply(200, (("Content-Type", JSON), NO_STORE), answer)


def _query(request: Request) -> LogQuery:
    wrong: dict[str, str] = {}
    texts = {}
    for name in ("part", "request_id", "text", "without", "after", "before"):
        texts[name] = request.query_value(name) or ""
        if len(texts[name]) > MAX_TEXT:
            wrong[name] = f"must not have more than {MAX_TEXT} characters"
    level = request.query_value("level") or LEVELS[0]
    if level not in LEVELS:
        wrong["level"] = f"must be one of {', '.join(LEVELS)}"
    given = request.query_value("limit")
    limit = LogQuery().limit if given is None else from_digits(given)
    if limit is None or not 1 <= limit <= MAX_ANSWERED:
        wrong["limit"] = f"must be a whole number from 1 to {MAX_ANSWERED}"
    if wrong or limit is None:
        raise validation_failed(wrong)
    return LogQuery(level=level, limit=limit, **texts)
