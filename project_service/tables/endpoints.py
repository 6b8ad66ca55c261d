"""The table API in ``/openapi.json``: the paths that every database has. What is in one, its own root describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from project_service.database.readers import CONSISTENCY, SHOWS_WRITE, WANTS_WRITE
from project_service.http.describe import (
    COUNT,
    JSON,
    STRING,
    Answer,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    in_header,
    in_path,
)
from project_service.tables import errors
from project_service.tables.errors import ANY_REQUEST, CALLING, CHANGING, FILTERED, ON_RELATION
from project_service.tables.reply.response import MAX_ROWS
from project_service.tables.request import headers

TAG = "tables"
BASE = "/{stage}/db/{database}/rest"
_OPEN_ENDED = "A function, a trigger or a policy of the database may set any status, headers and body."

ROW: Schema = {"type": "object"}
ROWS = array(ROW)
_DATABASE = (
    in_path("stage", "A stage of the configuration."),
    in_path("database", "One of its databases."),
)
RELATION = (*_DATABASE, in_path("relation", "A table or view."))
ROUTINE = (*_DATABASE, in_path("function", "A function."))

SELECT = Parameter("select", "Columns, embedded relations and aggregates to return; * by default.")
ORDER = Parameter(
    "order", "Order terms: column.asc or .desc, .nullsfirst or .nullslast, separated by commas."
)
LIMIT = Parameter("limit", "The greatest number of rows.", COUNT)
OFFSET = Parameter("offset", "How many rows to skip.", COUNT)
COLUMNS = Parameter("columns", "The members of the payload to take; others are ignored.")
FILTERS = Parameter(
    "filters",
    "Any other parameter is a horizontal filter: a column with operator.value; and, or, not with a logic tree.",
    {"type": "object", "additionalProperties": STRING},
)
ARGUMENTS = evolve(FILTERS, name="arguments", summary="The function's arguments, and filters on its result.")
PREFER = in_header(
    "Prefer",
    "Preferences (RFC 7240): return, count, resolution, missing, handling, timezone, consistency and so on.",
)
READS = in_header("Accept-Profile", "The exposed schema; the first one by default.")
WRITES = in_header("Content-Profile", "The exposed schema; the first one by default.")
WANTS = in_header(CONSISTENCY, WANTS_WRITE)
RANGE = in_header("Range", "Rows by position, such as 0-24: an alternative to offset and limit.")


_REPRESENTED: Mapping[str, Schema] = {
    JSON: ROWS,
    headers.OBJECT: ROW,
    headers.ARRAY: ROWS,
    headers.CSV: STRING,
    headers.NDJSON: STRING,
    headers.GEOJSON: ROW,
    headers.OCTETS: {},
    headers.TEXT: STRING,
    headers.XML: STRING,
    f"{headers.PLAN}+json": {},
    f"{headers.PLAN}+text": STRING,
}
_READ_HEADERS = {
    "Content-Range": "The range of these rows, and the total where it was asked for.",
    "Content-Location": "The request with its parameters in order.",
    MAX_ROWS: "The number of rows at which max_rows, and not the request, has cut the response: there may be more.",
    "Preference-Applied": "The preferences that were applied.",
}
_WRITE_HEADERS = {
    **{name: _READ_HEADERS[name] for name in ("Content-Range", "Preference-Applied")},
    CONSISTENCY: SHOWS_WRITE,
}


def _rows(status: int, summary: str, headers: Mapping[str, str] = _WRITE_HEADERS, **more: Any) -> Answer:
    return Answer(status, summary, {**_REPRESENTED, **more}, headers)


_SENT: Mapping[str, Schema] = {
    JSON: {"anyOf": [ROW, ROWS]},
    headers.CSV: STRING,
    headers.NDJSON: STRING,
    headers.FORM: {"type": "object", "additionalProperties": STRING},
}
_ROWS_SENT = RequestBody(_SENT, required=False, summary="Without Content-Type it is JSON.")
_ONE_ROW = evolve(_ROWS_SENT, content={**_SENT, JSON: ROW})
READ = Operation(
    "readRows",
    TAG,
    "Read rows",
    (
        _rows(200, "All rows, or a range of them whose total was not asked for", _READ_HEADERS),
        _rows(206, "Some of the rows", _READ_HEADERS),
    ),
    (*RELATION, SELECT, ORDER, LIMIT, OFFSET, FILTERS, READS, PREFER, WANTS, RANGE),
    errors=(*ANY_REQUEST, *ON_RELATION),
    methods=("GET", "HEAD"),
    path=f"{BASE}/{{relation}}",
    reads_bearer=True,
    open_ended=_OPEN_ENDED,
)
INSERT = evolve(
    READ,
    name="insertRows",
    summary="Insert one row or many, or upsert them",
    answers=(
        _rows(
            201,
            "The rows were inserted; they are in the body with Prefer: return=representation",
            {**_WRITE_HEADERS, "Location": "A request that reads the one row."},
        ),
        _rows(200, "Existing rows were updated, and none is new"),
    ),
    parameters=(
        *RELATION,
        SELECT,
        COLUMNS,
        Parameter(
            "on_conflict", "The columns that tell an upsert which row exists; the primary key by default."
        ),
        WRITES,
        PREFER,
    ),
    body=_ROWS_SENT,
    errors=(*ANY_REQUEST, *ON_RELATION, *CHANGING, errors.invalid_body("…")),
    methods=("POST",),
)
_CHANGED = (
    Answer(204, "Done.", headers=_WRITE_HEADERS),
    _rows(200, "The rows as they are now, with Prefer: return=representation"),
)
_CHANGED_ROWS = (*RELATION, SELECT, ORDER, LIMIT, OFFSET, FILTERS, WRITES, PREFER)
UPDATE = evolve(
    INSERT,
    name="updateRows",
    summary="Update the rows that match the filters",
    details='Without a filter it is refused, unless the database has unfiltered_writes = "allow".',
    answers=_CHANGED,
    parameters=(*_CHANGED_ROWS, COLUMNS),
    body=_ONE_ROW,
    errors=(*INSERT.errors, *FILTERED),
    methods=("PATCH",),
)
UPSERT = evolve(
    INSERT,
    name="upsertRow",
    summary="Insert or replace the one row whose primary key the filters name",
    answers=(*_CHANGED, _rows(201, "The row is new.")),
    parameters=(*RELATION, SELECT, COLUMNS, FILTERS, WRITES, PREFER),
    body=_ONE_ROW,
    errors=(
        *INSERT.errors,
        errors.invalid_upsert_filters(),
        errors.put_with_range(),
        errors.put_mismatch(),
    ),
    methods=("PUT",),
)
REMOVE = evolve(
    UPDATE,
    name="deleteRows",
    summary="Delete the rows that match the filters",
    answers=(_CHANGED[0], _rows(200, "The rows as they were, with Prefer: return=representation")),
    parameters=_CHANGED_ROWS,
    body=None,
    errors=(*ANY_REQUEST, *ON_RELATION, *CHANGING, *FILTERED),
    methods=("DELETE",),
)
_RESULT = (
    _rows(200, "What the function returned", **{"*/*": {}, JSON: {}}),
    _rows(206, "Some of the rows that it returned", **{"*/*": {}, JSON: {}}),
    Answer(204, "The function returns nothing."),
)
CALL = evolve(
    READ,
    name="callFunction",
    summary="Call a function that does not write, with arguments from the query",
    answers=_RESULT,
    parameters=(*ROUTINE, SELECT, ORDER, LIMIT, OFFSET, ARGUMENTS, READS, PREFER, WANTS, RANGE),
    errors=(*ANY_REQUEST, *CALLING),
    path=f"{BASE}/rpc/{{function}}",
)
CALL_WITH_BODY = evolve(
    CALL,
    name="callFunctionWithBody",
    summary="Call a function with arguments from the body",
    parameters=(*ROUTINE, SELECT, ORDER, LIMIT, OFFSET, COLUMNS, FILTERS, WRITES, PREFER, WANTS),
    body=RequestBody(
        {**_SENT, JSON: {}, headers.OCTETS: {}, headers.TEXT: STRING, headers.XML: STRING},
        required=False,
        summary="An object of arguments, or what the function's single unnamed argument takes.",
    ),
    errors=(*CALL.errors, errors.invalid_body("…")),
    methods=("POST",),
)
ROOT = evolve(
    READ,
    name="describeDatabase",
    summary="The description of what the caller may use in the database, in OpenAPI's form",
    answers=(
        Answer(200, "OpenAPI 2.0", {headers.OPENAPI: ROW, JSON: ROW}, {"ETag": "Differs after any change."}),
        Answer(304, "If-None-Match names this description"),
    ),
    parameters=(
        *_DATABASE,
        READS,
        PREFER,
        in_header("If-None-Match", "The ETag of a description that the caller has."),
    ),
    errors=(*ANY_REQUEST, errors.unacceptable_media([]), errors.root_disabled()),
    path=BASE,
)
_ALLOWED = (Answer(200, "Allow names the methods", headers={"Allow": "The methods that the target has."}),)
_PREFLIGHT = evolve(READ, answers=_ALLOWED, methods=("OPTIONS",))
RELATION_OPTIONS = evolve(
    _PREFLIGHT,
    name="relationOptions",
    summary="What may be done with a relation",
    parameters=(*RELATION, READS),
    errors=(*ANY_REQUEST, errors.no_table("…", "…", None)),
)
ROUTINE_OPTIONS = evolve(
    _PREFLIGHT,
    name="functionOptions",
    summary="How a function may be called",
    parameters=(*ROUTINE, READS),
    errors=(*ANY_REQUEST, errors.no_routine("…", "…", None)),
    path=CALL.path,
)
ROOT_OPTIONS = evolve(
    _PREFLIGHT,
    name="databaseOptions",
    summary="What may be done with the root",
    parameters=(*_DATABASE, READS),
    errors=ANY_REQUEST,
    path=BASE,
)

AT_ROOT = (ROOT, ROOT_OPTIONS)
BELOW = (READ, INSERT, UPDATE, UPSERT, REMOVE, RELATION_OPTIONS, CALL, CALL_WITH_BODY, ROUTINE_OPTIONS)


def at(operation: Operation, base: str, tag: str, prefix: str) -> Operation:
    """The same operation where ``base`` is the path of the one database. ``prefix`` makes its name another one."""
    path = (operation.path or BASE).replace(BASE, base, 1)
    parameters = tuple(one for one in operation.parameters if one not in _DATABASE)
    name = prefix + operation.name[0].upper() + operation.name[1:]
    return evolve(operation, name=name, tag=tag, path=path, parameters=parameters)
