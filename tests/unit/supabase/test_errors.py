"""Errors as ``/auth/v1`` has them: the table has every code that its endpoints can raise."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase as TestCase

from project_service import errors
from project_service.auth import errors as auth_errors
from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.supabase.errors import (
    FOR_MAILS,
    FOR_USERS,
    THEIRS,
    form,
    saml_provider_disabled,
    translated,
)
from tests.http.edge.test_openapi import catalogue


def body_of(error: ApiError, version: str | None = "2024-01-01") -> tuple[int, Any, dict[str, str]]:
    sent = [] if version is None else [(b"x-supabase-api-version", version.encode())]
    reply = form().answer(error, HeaderView(sent))
    return reply.status, json.loads(reply.body), {name.lower(): value for name, value in reply.headers}


class Table(TestCase):
    def test_every_code_is_in_it_and_no_other(self) -> None:
        made = {error.code for module in (errors, auth_errors) for error in catalogue(module)}
        self.assertGreater(len(made), 30)
        self.assertEqual(set(THEIRS) ^ made, set())
        self.assertLessEqual({*FOR_MAILS, *FOR_USERS}, made)

    def test_statuses_are_those_of_a_final_refusal(self) -> None:
        for module in (errors, auth_errors):
            for error in catalogue(module):
                if error.code in ("refused_by_project", "hook_refused"):
                    continue  # the project chooses the status
                status, body, _ = body_of(error)
                self.assertTrue(400 <= status <= 599 and body["message"], error.code)
                # A client takes these for a fault of the network, and tries again.
                if status >= 500:
                    self.assertEqual(status, error.status)
                    self.assertIn(status, (500, 503))

    def test_what_clients_look_for(self) -> None:
        for error, status, code, message in (
            (auth_errors.invalid_credentials(), 400, "invalid_credentials", "Invalid login credentials"),
            (auth_errors.email_taken(), 422, "user_already_exists", "User already registered"),
            (errors.session_revoked(), 403, "session_not_found", None),
            (errors.invalid_token(), 403, "bad_jwt", "invalid JWT: The access token is not valid."),
            (
                errors.authentication_required(),
                401,
                "no_authorization",
                "This endpoint requires a valid Bearer token",
            ),
            (errors.service_key_required(), 403, "not_admin", "User not allowed"),
            (auth_errors.user_not_found(), 404, "user_not_found", "User not found"),
            (auth_errors.refresh_token_reused(), 400, "refresh_token_already_used", None),
            (auth_errors.invalid_one_time_token(), 403, "otp_expired", "Token has expired or is invalid"),
            (
                errors.validation_failed({"email": "is not an e-mail address"}),
                400,
                "validation_failed",
                "Unable to validate email address: invalid format",
            ),
            (
                errors.validation_failed({"x": "is bad"}),
                400,
                "validation_failed",
                "A value is not allowed: x is bad.",
            ),
        ):
            got = body_of(error)
            self.assertEqual((got[0], got[1]["code"]), (status, code))
            if message is not None:
                self.assertEqual(got[1]["message"], message)

    def test_exceptions_go_first(self) -> None:
        self.assertEqual(translated(auth_errors.email_taken(), FOR_USERS).code, "email_exists")
        self.assertEqual(translated(errors.rate_limited(3), FOR_MAILS).code, "over_email_send_rate_limit")
        self.assertEqual(translated(errors.rate_limited(3)).code, "over_request_rate_limit")

    def test_a_weak_password_has_reasons(self) -> None:
        for why, weakness, message in (
            ("must have at least 8 characters", "length", "Password should be at least 8 characters."),
            ("is one of the most common passwords", "pwned", "Password is one of the most common passwords."),
        ):
            error = auth_errors.WeakPassword(why, weakness)  # type: ignore[arg-type]
            status, body, _ = body_of(error)
            self.assertEqual((status, body["code"], body["message"]), (422, "weak_password", message))
            self.assertEqual(body["weak_password"], {"reasons": [weakness]})
            self.assertEqual(body_of(error, None)[1]["weak_password"], {"reasons": [weakness]})


class Form(TestCase):
    def test_it_depends_on_the_date_in_the_request(self) -> None:
        error = auth_errors.user_not_found()
        new = {"code": "user_not_found", "message": "User not found"}
        old = {"code": 404, "error_code": "user_not_found", "msg": "User not found"}
        for version, body in (
            ("2024-01-01", new),
            ("2025-06-30", new),
            ("2023-12-31", old),
            ("tomorrow", old),
            ("2024-01-01\n", old),
            ("9", old),
            ("", old),
            (None, old),
        ):
            status, given, headers = body_of(error, version)
            self.assertEqual((status, given), (404, body), version)
            self.assertEqual(headers["x-sb-error-code"], "user_not_found")
            self.assertEqual(headers.get("x-supabase-api-version"), "2024-01-01" if body is new else None)
            self.assertEqual(headers["cache-control"], "no-store")

    def test_what_could_not_be_read_as_a_request_gets_the_older_form(self) -> None:
        reply = form().answer(errors.bad_request())
        self.assertEqual(json.loads(reply.body)["code"], 400)

    def test_headers_go_along_but_for_a_challenge_where_the_status_is_another(self) -> None:
        self.assertEqual(body_of(errors.rate_limited(7))[2]["retry-after"], "7")
        self.assertEqual(body_of(errors.authentication_required())[2]["www-authenticate"], "Bearer")
        self.assertNotIn("www-authenticate", body_of(errors.session_revoked())[2])
        self.assertEqual(body_of(errors.method_not_allowed(("GET",)))[2]["allow"], "GET")

    def test_a_refusal_of_this_interface_is_left_as_it_is(self) -> None:
        own = saml_provider_disabled()
        self.assertIs(translated(own), own)
        message = {"code": "saml_provider_disabled", "message": "SAML 2.0 is disabled"}
        self.assertEqual(body_of(own)[:2], (404, message))
