"""What every operation of ``/openapi.json`` shares: the error bodies, the ways to say who calls. Pure."""

from __future__ import annotations

from project_service.http.openapi.described import ANY, STRING, Named, obj

INTRODUCTION = """\
Authentication, object storage and a table REST API of one project.

Every response has `X-Request-Id`; a request may bring its own (1 to 128 of `A-Za-z0-9._-`). `OPTIONS` is answered \
on every path, for preflights too. A path that is none is 404 `not_found`, a method that a path does not have 405 \
`method_not_allowed` with `Allow`. What each database of the table API holds is described at the database's own \
root, `/{stage}/db/{database}/rest/`, to whoever may use it."""

ERROR = Named(
    "Error",
    obj(
        ("data", "error"),
        data={"type": "null"},
        error=obj(
            ("code", "message"),
            code={"type": "string", "description": "Stable; part of the interface."},
            message={"type": "string", "description": "One sentence for a person; may change."},
            details={
                "type": "object",
                "description": "Field to reason, where fields are at fault.",
                "additionalProperties": {"type": "string"},
            },
        ),
    ),
)
TABLE_ERROR = Named(
    "TableError",
    obj(
        ("code", "message"),
        code={"type": "string", "description": "PostgREST's, PostgreSQL's (SQLSTATE) or the service's."},
        message=STRING,
        details={**ANY, "description": "Text, or JSON where it lists choices."},
        hint={"type": ["string", "null"]},
    ),
)
# SQLSTATEs and PostgREST's codes come in greater number than a list could hold.
TABLE_CODE = "[0-9A-Z]{5}|PGRST[0-9]{3}"

SECURITY_SCHEMES = {
    "projectKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Service-Key",
        "description": "A project key: the anon key, which may be published, or the service key.",
    },
    "apikey": {
        "type": "apiKey",
        "in": "header",
        "name": "apikey",
        "description": "The same keys under the name that clients of this ecosystem send.",
    },
    "serviceKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Service-Key",
        "description": "The secret project key. It stands for a signed-in end user and passes every rule.",
    },
    "userToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The access token of a signed-in end user, from signup, login or refresh.",
    },
}
