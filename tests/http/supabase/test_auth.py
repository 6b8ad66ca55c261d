"""``/auth/v1``: every endpoint as clients of the Supabase family call it, and every refusal."""

from __future__ import annotations

from typing import Any

import jwt
from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.audit import Origin
from project_service.auth.assemble import clean
from project_service.auth.errors import email_not_configured
from project_service.auth.values import moment
from project_service.lifecycle import start, timestamp
from tests.captured_log import logged_until_the_end
from tests.fakes.auth import in_place_of_sql
from tests.fakes.common import ANON_KEY, SERVICE_KEY
from tests.http.auth.app import NOW, PASSWORD, Answer
from tests.http.supabase.app import EMAIL, ClientApp, token_of

OTHER, OTHERS = "another battery horse", "grace@example.test"
USER_MEMBERS = {
    *("id", "aud", "role", "email", "phone", "last_sign_in_at", "app_metadata", "user_metadata"),
    *("email_confirmed_at", "confirmed_at"),
    *("identities", "created_at", "updated_at", "is_anonymous"),
}


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.body["code"]


class Base(TestCase):
    def setUp(self) -> None:
        self.app = ClientApp(self)

    def refused(self, status: int, why: str, *request: Any, **more: Any) -> Answer:
        answer = self.app.ask(*request, **more)
        assert code(answer) == (status, why), (request, answer.status, answer.body)
        assert answer.response.header("x-sb-error-code") == why
        assert answer.response.header("x-supabase-api-version") == "2024-01-01"
        return answer


class SigningUp(Base):
    def test_it_begins_a_session(self) -> None:
        session = self.app.begin_session(data={"name": "Ada"}, gotrue_meta_security={}, code_challenge=None)
        assert set(session) == {
            *("access_token", "token_type", "expires_in", "expires_at", "refresh_token", "user")
        }
        assert (session["token_type"], session["expires_in"]) == ("bearer", 3600)
        assert session["expires_at"] == int(NOW) + 3600
        user = session["user"]
        assert set(user) == USER_MEMBERS
        assert (user["aud"], user["role"], user["email"]) == ("authenticated", "authenticated", EMAIL)
        assert (user["phone"], user["is_anonymous"]) == ("", False)
        # Nobody asks for a confirmation; that the address is theirs is not shown by that.
        assert user["email_confirmed_at"] == user["confirmed_at"] == user["created_at"]
        assert user["app_metadata"] == {"provider": "email", "providers": ["email"]}
        assert user["user_metadata"] == {"name": "Ada"}
        (identity,) = user["identities"]
        assert identity["identity_data"] == {
            **{"email": EMAIL, "email_verified": False},
            **{"phone_verified": False, "sub": user["id"]},
        }
        assert (identity["provider"], identity["user_id"], identity["id"]) == (
            "email",
            user["id"],
            user["id"],
        )
        assert identity["identity_id"] != user["id"]

    def test_the_token_says_what_clients_and_policies_read(self) -> None:
        token = self.app.begin_session(data={"a": 1})["access_token"]
        claims = jwt.decode(token, options={"verify_signature": False})
        assert claims["session_id"] == claims["sid"]
        assert (claims["aal"], claims["phone"], claims["is_anonymous"]) == ("aal1", "", False)
        assert claims["amr"] == [{"method": "password", "timestamp": int(NOW)}]
        assert claims["app_metadata"] == {"provider": "email", "providers": ["email"]}
        assert claims["user_metadata"] == {"a": 1}

    def test_the_same_user_is_at_the_own_paths(self) -> None:
        session = self.app.begin_session()
        assert self.app.user(session["access_token"]).data["user"]["id"] == session["user"]["id"]
        assert self.app.log_in().status == 200

    def test_a_taken_address_is_refused_without_confirmation(self) -> None:
        self.app.begin_session()
        answer = self.refused(
            422, "user_already_exists", "POST", "/signup", {"email": EMAIL.upper(), "password": PASSWORD}
        )
        assert answer.body["message"] == "User already registered"

    def test_with_confirmation_there_is_a_user_without_a_session(self) -> None:
        self.app.reload(confirm_email=True)
        body = self.app.begin_session(data={"a": 1})
        unconfirmed = USER_MEMBERS - {"last_sign_in_at", "email_confirmed_at", "confirmed_at"}
        assert set(body) == unconfirmed | {"confirmation_sent_at"}
        assert len(body["identities"]) == 1
        assert [mail.recipient for mail in self.app.mails] == [EMAIL]
        assert code(self.app.again()) == (400, "email_not_confirmed")

    def test_with_confirmation_a_taken_address_gets_a_made_up_user(self) -> None:
        known = self.app.begin_session()["user"]["id"]
        self.app.reload(confirm_email=True)
        fresh = self.app.begin_session("new@example.test", data={"a": 1})
        taken = self.app.begin_session("Ada@Example.test", data={"a": 1})
        assert set(taken) == set(fresh)
        assert taken["id"] not in (known, fresh["id"])
        assert (taken["email"], taken["user_metadata"]) == ("Ada@example.test", {"a": 1})
        assert taken["identities"] == []
        # The owner, who never confirmed it, may do so now.
        assert sorted(mail.recipient for mail in self.app.mails) == [EMAIL, "new@example.test"]
        assert code(self.app.again(password=OTHER)) == (400, "invalid_credentials")

    def test_a_made_up_user_costs_the_same_steps(self) -> None:
        """The statements that both kinds of sign-up run, so that the time tells nothing."""
        self.app.begin_session()
        self.app.reload(confirm_email=True)
        steps: list[list[str]] = []
        for address in ("new@example.test", EMAIL):
            before = len(self.app.repository.events)
            self.app.begin_session(address)
            steps.append([event.action for event in self.app.repository.events[before:]])
        assert steps == [["signup", "mail_confirmation"]] * 2

    def test_what_is_not_offered(self) -> None:
        self.refused(422, "anonymous_provider_disabled", "POST", "/signup", {"data": {}})
        self.refused(400, "phone_provider_disabled", "POST", "/signup", {"phone": "1", "password": PASSWORD})

    def test_refusals(self) -> None:
        def refused(status: int, why: str, **body: Any) -> Answer:
            return self.refused(
                status, why, "POST", "/signup", {"email": EMAIL, "password": PASSWORD, **body}
            )

        assert refused(400, "validation_failed", password=None).body["message"].count("valid password")
        for email in ("ada", "ada@", "x\0@example.test"):
            answer = refused(400, "validation_failed", email=email)
            assert answer.body["message"] == "Unable to validate email address: invalid format"
        refused(400, "validation_failed", email=7)
        refused(400, "validation_failed", data=[])
        refused(400, "validation_failed", data={"a": "x" * 20_000})
        weak = refused(422, "weak_password", password="short").body
        assert weak["message"] == "Password should be at least 8 characters."
        assert weak["weak_password"] == {"reasons": ["length"]}
        assert refused(422, "weak_password", password="password123").body["weak_password"]["reasons"] == [
            "pwned"
        ]
        self.app.reload(allow_signup=False)
        refused(422, "signup_disabled")

    def test_bodies_that_cannot_be_read(self) -> None:
        for raw, kind, expected in (
            (b"{", "application/json", (400, "bad_json")),
            (b"[]", "application/json", (400, "bad_json")),
            (b"{}", "text/plain", (415, "unsupported_media_type")),
        ):
            answer = self.app.ask("POST", "/signup", raw=raw, Content_Type=kind)
            assert code(answer) == expected

    def test_the_limit_of_signups(self) -> None:
        self.app.reload(signups_max_per_address=1)
        self.app.begin_session()
        self.refused(
            429,
            "over_request_rate_limit",
            "POST",
            "/signup",
            {"email": "b@example.test", "password": PASSWORD},
        )


class SigningIn(Base):
    def test_by_password(self) -> None:
        user = self.app.begin_session()["user"]
        self.app.clock.advance(60)
        session = self.app.again().body
        assert session["user"]["id"] == user["id"]
        assert session["user"]["last_sign_in_at"] > user["last_sign_in_at"]
        assert session["user"]["updated_at"] > user["updated_at"]

    def test_refusals(self) -> None:
        user = self.app.begin_session()["user"]
        for email, password in ((EMAIL, OTHER), (EMAIL, ""), ("nobody@example.test", PASSWORD)):
            answer = self.app.again(email, password)
            assert code(answer) == (400, "invalid_credentials")
            assert answer.body["message"] == "Invalid login credentials"
        path = "/token?grant_type=password"
        self.refused(400, "validation_failed", "POST", path, {"password": PASSWORD})
        self.refused(400, "phone_provider_disabled", "POST", path, {"phone": "1", "password": PASSWORD})
        self.app.operate("PUT", f"/{user['id']}", {"ban_duration": "876000h"})
        assert code(self.app.again()) == (400, "user_banned")

    def test_guesses_are_limited_together_with_those_at_the_own_path(self) -> None:
        self.app.reload(login_failures_max=2)
        self.app.begin_session()
        assert self.app.log_in(password=OTHER).status == 401
        assert code(self.app.again(password=OTHER)) == (400, "invalid_credentials")
        answer = self.app.again()
        assert code(answer) == (429, "over_request_rate_limit")
        assert answer.response.header("retry-after") == "900"

    def test_a_session_goes_on_with_its_refresh_token(self) -> None:
        session = self.app.begin_session()
        self.app.clock.advance(3600)
        answer = self.app.ask(
            "POST", "/token?grant_type=refresh_token", {"refresh_token": session["refresh_token"]}
        )
        assert answer.status == 200
        first, second = (
            jwt.decode(one["access_token"], options={"verify_signature": False})
            for one in (session, answer.body)
        )
        assert second["session_id"] == first["session_id"]
        # When the user signed in, not when the token was refreshed.
        assert second["amr"] == first["amr"]
        assert second["iat"] == first["iat"] + 3600

    def test_refresh_tokens_that_are_refused(self) -> None:
        path = "/token?grant_type=refresh_token"
        self.refused(400, "refresh_token_not_found", "POST", path, {"refresh_token": "unknown"})
        self.refused(400, "validation_failed", "POST", path, {})
        first = token = self.app.begin_session()["refresh_token"]
        for _ in range(2):
            token = self.app.ask("POST", path, {"refresh_token": token}).body["refresh_token"]
        self.app.clock.advance(60)
        self.refused(400, "refresh_token_already_used", "POST", path, {"refresh_token": first})

    def test_other_grants(self) -> None:
        for grant, status, why in (
            ("pkce", 404, "flow_state_not_found"),
            ("id_token", 400, "provider_disabled"),
            ("web3", 422, "web3_provider_disabled"),
            ("implicit", 400, "invalid_credentials"),
            ("", 400, "invalid_credentials"),
        ):
            self.refused(status, why, "POST", f"/token?grant_type={grant}", {})
        self.refused(400, "validation_failed", "POST", "/token?grant_type=a&grant_type=b", {})


class TheSignedInUser(Base):
    def setUp(self) -> None:
        super().setUp()
        self.session = self.app.begin_session(data={"name": "Ada", "n": 1})
        self.token = self.session["access_token"]

    def put(self, token: str | None = None, **body: Any) -> Answer:
        return self.app.ask("PUT", "/user", body, token or self.token)

    def test_is_read(self) -> None:
        answer = self.app.ask("GET", "/user", token=self.token)
        assert (answer.status, answer.body) == (200, self.session["user"])
        assert answer.response.header("cache-control") == "no-store"

    def test_who_is_not_signed_in_is_told(self) -> None:
        for method, path in (("GET", "/user"), ("PUT", "/user"), ("POST", "/logout")):
            self.refused(401, "no_authorization", method, path, {} if method == "PUT" else None)
            self.refused(403, "bad_jwt", method, path, {} if method == "PUT" else None, token="a.b.c")
        self.app.clock.advance(3600 + 30)
        answer = self.refused(403, "bad_jwt", "GET", "/user", token=self.token)
        assert answer.body["message"] == "invalid JWT: The access token has expired."

    def test_data_is_merged_and_null_removes(self) -> None:
        changed = self.put(data={"n": None, "b": {"c": None}}, code_challenge=None).body
        assert changed["user_metadata"] == {"name": "Ada", "b": {"c": None}}
        assert self.app.user(self.token).data["user"]["metadata"] == changed["user_metadata"]
        assert code(self.put(data={"x": "x" * 16_380})) == (400, "validation_failed")
        assert self.put(data={}).body["user_metadata"] == changed["user_metadata"]

    def test_app_metadata_is_not_the_users_to_change(self) -> None:
        assert self.put(app_metadata={"role": "admin"}, role="service_role").status == 200
        user = self.app.ask("GET", "/user", token=self.token).body
        assert user["app_metadata"] == {"provider": "email", "providers": ["email"]}

    def test_a_password_is_set_soon_after_signing_in_and_ends_other_sessions(self) -> None:
        other = self.app.again().body["access_token"]
        self.app.clock.advance(3599)
        assert self.put(password=OTHER).status == 200
        assert code(self.app.ask("GET", "/user", token=other)) == (403, "session_not_found")
        assert self.app.ask("GET", "/user", token=self.token).status == 200
        assert self.app.again(password=OTHER).status == 200
        assert self.app.again().status == 400

    def later(self) -> str:
        """A token of the session, refreshed a day after it began."""
        self.app.clock.advance(24 * 3600 + 1)
        path = "/token?grant_type=refresh_token"
        answer = self.app.ask("POST", path, {"refresh_token": self.session["refresh_token"]})
        token: str = answer.body["access_token"]
        return token

    def test_later_a_password_needs_the_current_one(self) -> None:
        token = self.later()
        assert code(self.put(token, password=OTHER)) == (400, "reauthentication_needed")
        assert code(self.put(token, password=OTHER, current_password="wrong")) == (400, "invalid_credentials")
        assert self.app.again().status == 200
        assert self.put(token, password=OTHER, current_password=PASSWORD).status == 200
        assert self.app.again(password=OTHER).status == 200

    def test_wrong_current_passwords_are_limited(self) -> None:
        self.app.reload(login_failures_max=2)
        for expected in ((400, "invalid_credentials"),) * 2 + ((429, "over_request_rate_limit"),):
            assert code(self.put(password=OTHER, current_password="wrong")) == expected

    def test_a_wrong_current_password_does_not_tell_what_the_right_one_is(self) -> None:
        answers = [self.put(password=one, current_password="wrong") for one in (PASSWORD, OTHER)]
        assert [code(one) for one in answers] == [(400, "invalid_credentials")] * 2

    def test_a_password_is_not_set_beside_data_that_is_refused(self) -> None:
        assert code(self.put(password=OTHER, data={"x": "x" * 16_380})) == (400, "validation_failed")
        assert self.app.again().status == 200

    def test_that_demand_can_be_switched_off(self) -> None:
        self.app.reload(secure_password_change=False)
        assert self.put(self.later(), password=OTHER).status == 200

    def test_a_password_has_to_be_another_and_a_good_one(self) -> None:
        assert code(self.put(password=PASSWORD)) == (422, "same_password")
        assert code(self.put(password=PASSWORD, current_password=PASSWORD)) == (422, "same_password")
        assert code(self.put(password="short")) == (422, "weak_password")

    def test_of_two_passwords_at_once_one_is_set(self) -> None:
        gate = self.app.hashes
        before = self.app.repository.accounts[self.session["user"]["id"]]
        original = gate.hash

        async def slow(password: bytes) -> bytes:
            hashed = await original(password)
            # Another request sets one meanwhile.
            event = self.app.auth.context.user_event(
                "set_password", self.app.auth.verifier.verify(self.token), Origin()
            )
            await self.app.repository.set_password(
                before.user.id, await original(b"a third one"), None, event, keep_sessions=True
            )
            return hashed

        self.patch(gate, "hash", slow)
        assert code(self.put(password=OTHER)) == (403, "session_not_found")

    def test_what_cannot_be_changed_is_refused_and_changes_nothing(self) -> None:
        self.app.begin_session(OTHERS)
        for body, status, why in (
            ({"phone": "123"}, 400, "phone_provider_disabled"),
            ({"email": "x"}, 400, "validation_failed"),
            ({"email": OTHERS}, 422, "email_exists"),
            ({"password": OTHER, "nonce": "12345"}, 422, "reauthentication_not_valid"),
            ({"password": OTHER, "nonce": "123456"}, 422, "reauthentication_not_valid"),
        ):
            assert code(self.put(data={"x": 1}, **body)) == (status, why)
        assert self.put(email=EMAIL.upper(), phone="", nonce="").body == self.session["user"]

    def test_signing_out(self) -> None:
        for scope, ends_own, ends_others in (
            ("", True, True),
            ("?scope=global", True, True),
            ("?scope=local", True, False),
            ("?scope=others", False, True),
        ):
            own, other = (self.app.again().body["access_token"] for _ in range(2))
            answer = self.app.ask("POST", f"/logout{scope}", token=own)
            assert (answer.status, answer.response.body) == (204, b"")
            for token, ended in ((own, ends_own), (other, ends_others)):
                answer = self.app.ask("GET", "/user", token=token)
                expected = (403, "session_not_found") if ended else (200, None)
                assert (answer.status, answer.body.get("code")) == expected, scope
        token = self.app.again().body["access_token"]
        self.refused(400, "validation_failed", "POST", "/logout?scope=all", token=token)

    def test_operators_sign_users_out_by_their_token(self) -> None:
        assert self.app.ask("POST", "/logout?scope=global", token=self.token, key=SERVICE_KEY).status == 204
        self.refused(403, "session_not_found", "GET", "/user", token=self.token)

    def test_a_user_who_was_deleted_has_no_session(self) -> None:
        self.app.operate("DELETE", f"/{self.session['user']['id']}")
        self.refused(403, "session_not_found", "GET", "/user", token=self.token)


class Mails(Base):
    def test_recovery_and_confirmation_say_nothing_of_who_has_an_account(self) -> None:
        self.app.begin_session()
        for path, body in (("/recover", {}), ("/resend", {"type": "signup"})):
            for email in (EMAIL, "nobody@example.test"):
                answer = self.app.ask("POST", path, {"email": email, "code_challenge": None, **body})
                assert (answer.status, answer.body) == (200, {})
        assert [mail.recipient for mail in self.app.mails] == [EMAIL, EMAIL]

    def test_refusals(self) -> None:
        self.refused(400, "validation_failed", "POST", "/recover", {})
        self.refused(400, "validation_failed", "POST", "/recover", {"email": "x"})
        self.refused(400, "validation_failed", "POST", "/resend", {"type": "signup"})
        self.refused(400, "validation_failed", "POST", "/resend", {"type": "recovery", "email": EMAIL})
        self.refused(400, "validation_failed", "POST", "/otp", {})
        self.refused(400, "phone_provider_disabled", "POST", "/otp", {"phone": "1"})
        challenges: Any = (
            {"code_challenge": "x" * 129},
            {"code_challenge": "x", "code_challenge_method": "s5"},
        )
        for wrong in challenges:
            self.refused(400, "validation_failed", "POST", "/otp", {"email": EMAIL, **wrong})
        self.refused(400, "phone_provider_disabled", "POST", "/resend", {"type": "sms", "phone": "1"})

    def test_limits(self) -> None:
        asked: Any = (("/recover", {}), ("/resend", {"type": "signup"}), ("/otp", {}), ("/magiclink", {}))
        for limit in ("emails_max_per_address", "emails_max_per_account"):
            self.app = ClientApp(self)
            self.app.reload(**{limit: 1})
            assert self.app.ask("POST", "/recover", {"email": EMAIL}).status == 200
            for path, body in asked:
                self.refused(429, "over_email_send_rate_limit", "POST", path, {"email": EMAIL, **body})
            other = self.app.ask("POST", "/recover", {"email": OTHERS})
            assert other.status == (429 if limit == "emails_max_per_address" else 200)
            # What strangers ask for keeps nobody from theirs.
            assert self.app.ask("POST", "/recover", {"email": EMAIL}, host="192.0.2.99").status == 200

    def test_without_a_mail_server(self) -> None:
        self.app = ClientApp(self, mail=False)
        answer = self.refused(400, "email_provider_disabled", "POST", "/recover", {"email": EMAIL})
        assert answer.body["message"] == email_not_configured().message


class TheService(Base):
    def test_settings(self) -> None:
        settings = self.app.call("GET", "/auth/v1/settings").body
        assert settings["external"]["email"] is True
        assert {"phone", "google", "slack_oidc", "x", "keycloak"} <= set(settings["external"])
        assert not any(value for name, value in settings["external"].items() if name != "email")
        assert (settings["disable_signup"], settings["mailer_autoconfirm"]) == (False, True)
        self.app.reload(allow_signup=False, confirm_email=True)
        settings = self.app.call("GET", "/auth/v1/settings").body
        assert (settings["disable_signup"], settings["mailer_autoconfirm"]) == (True, False)

    def test_health(self) -> None:
        assert set(self.app.call("GET", "/auth/v1/health").body) == {"name", "version", "description"}

    def test_keys(self) -> None:
        theirs = self.app.call("GET", "/auth/v1/.well-known/jwks.json")
        assert theirs.body == self.app.call("GET", "/.well-known/jwks.json").body
        assert theirs.body["keys"][0]["kid"]
        assert theirs.response.header("cache-control") == "public, max-age=300"


class Operators(Base):
    def made(self, email: str = EMAIL, **body: Any) -> Any:
        answer = self.app.operate("POST", body={"email": email, **body})
        assert answer.status == 200, answer.body
        return answer.body

    def test_a_user_is_made(self) -> None:
        key = "5e9d3a00-0000-4000-8000-000000000007"
        user = self.made(
            id=key,
            password=PASSWORD,
            email_confirm=True,
            user_metadata={"a": 1},
            app_metadata={"role": "admin"},
            role="authenticated",
            ban_duration="none",
            phone="",
        )
        assert set(user) == USER_MEMBERS - {"last_sign_in_at"}
        assert (user["id"], user["user_metadata"]) == (key, {"a": 1})
        assert user["app_metadata"] == {"provider": "email", "providers": ["email"], "role": "admin"}
        session = self.app.again().body
        claims = jwt.decode(session["access_token"], options={"verify_signature": False})
        assert claims["app_metadata"]["role"] == "admin"
        assert self.app.operate("GET", f"/{key}").body == session["user"]

    def test_an_imported_hash_works(self) -> None:
        hashed = self.app.hashes.bcrypt.hash(PASSWORD.encode()).decode()
        self.made(password_hash=hashed)
        assert self.app.again().status == 200

    def test_refusals_of_new_users(self) -> None:
        self.made()
        for body, status, why in (
            ({"email": EMAIL.upper()}, 422, "email_exists"),
            ({}, 400, "validation_failed"),
            ({"phone": "1"}, 400, "phone_provider_disabled"),
            ({"email": "b@example.test", "phone": "1"}, 400, "phone_provider_disabled"),
            ({"email": "b@example.test", "password": "short"}, 422, "weak_password"),
            ({"email": "b@example.test", "id": "7"}, 400, "validation_failed"),
            ({"email": "b@example.test", "password_hash": "x"}, 400, "validation_failed"),
            ({"email": "b@example.test", "app_metadata": {"a": "x" * 2000}}, 400, "validation_failed"),
            ({"email": "b@example.test", "role": "service_role"}, 422, "feature_disabled"),
            ({"email": "b@example.test", "ban_duration": "soon"}, 400, "validation_failed"),
            ({"email": "b@example.test", "ban_duration": "1e9h"}, 400, "validation_failed"),
        ):
            assert code(self.app.operate("POST", body=body)) == (status, why), body
        assert self.app.operate("GET").response.header("x-total-count") == "1"
        key = self.app.operate("GET").body["users"][0]["id"]
        answer = self.app.operate("POST", body={"email": "b@example.test", "id": key})
        assert code(answer) == (422, "user_already_exists")

    def test_a_user_is_changed(self) -> None:
        user = self.made(
            password=PASSWORD, user_metadata={"a": 1, "b": 2}, app_metadata={"role": "x", "n": 1}
        )
        path = f"/{user['id']}"
        changed = self.app.operate(
            "PUT",
            path,
            {
                "email": EMAIL.upper(),
                "email_confirm": True,
                "user_metadata": {"b": None, "c": 3},
                "app_metadata": {"n": None},
                "password": OTHER,
            },
        ).body
        assert changed["user_metadata"] == {"a": 1, "c": 3}
        assert changed["app_metadata"] == {"provider": "email", "providers": ["email"], "role": "x"}
        assert changed["email"] == EMAIL and changed["email_confirmed_at"]
        assert self.app.operate("GET", path).body == changed
        assert (self.app.again().status, self.app.again(password=OTHER).status) == (400, 200)

    def test_metadata_that_sql_made_too_large_keeps_nothing_else_from_changing(self) -> None:
        user = self.made(password=PASSWORD)
        rows = self.app.repository.accounts
        account = rows[user["id"]]
        large = {"a": "x" * 20_000}
        rows[user["id"]] = evolve(account, user=evolve(account.user, metadata=large, app_metadata=large))
        changed = self.app.operate("PUT", f"/{user['id']}", {"email_confirm": True, "password": OTHER})
        assert (changed.status, changed.body["app_metadata"]) == (200, large)
        token = self.app.again(password=OTHER).body["access_token"]
        assert self.app.ask("PUT", "/user", {"password": PASSWORD}, token).status == 200

    def test_a_user_is_banned_for_good_and_comes_back(self) -> None:
        session = self.app.begin_session()
        path = f"/{session['user']['id']}"
        assert self.app.operate("PUT", path, {"ban_duration": "876000h"}).body["banned_until"] > "3000"
        assert code(self.app.again()) == (400, "user_banned")
        self.refused(403, "session_not_found", "GET", "/user", token=session["access_token"])
        assert self.app.operate("PUT", path, {"app_metadata": {"x": 1}}).body["banned_until"]
        assert "banned_until" not in self.app.operate("PUT", path, {"ban_duration": "none"}).body
        assert self.app.again().status == 200

    def test_a_user_is_banned_for_a_time(self) -> None:
        user = self.made(password=PASSWORD, ban_duration="30m")
        assert user["banned_until"] == timestamp(moment(NOW + 1800))
        banned = self.app.operate("PUT", f"/{user['id']}", {"ban_duration": "1h30m"}).body
        assert banned["banned_until"] == timestamp(moment(NOW + 5400))
        assert code(self.app.again()) == (400, "user_banned")
        self.app.clock.advance(5401)
        context, repository = self.app.auth.context, in_place_of_sql(self.app.repository)
        self.successResultOf(start(clean(repository, context)))
        assert self.app.again().status == 200

    def test_a_user_gets_another_address(self) -> None:
        user = self.made(password=PASSWORD, email_confirm=True)
        changed = self.app.operate("PUT", f"/{user['id']}", {"email": OTHERS, "email_confirm": True}).body
        assert (changed["email"], changed["identities"][0]["email"]) == (OTHERS, OTHERS)
        assert changed["identities"][0]["identity_data"]["email_verified"] is True
        assert (self.app.again().status, self.app.again(OTHERS).status) == (400, 200)

    def test_refusals_of_changes(self) -> None:
        user = self.made()
        self.made(OTHERS)
        for body, status, why in (
            ({"email": OTHERS}, 422, "email_exists"),
            ({"email": "x"}, 400, "validation_failed"),
            ({"phone": "1"}, 400, "phone_provider_disabled"),
            ({"password": "short"}, 422, "weak_password"),
            ({"role": "anon"}, 422, "feature_disabled"),
            ({"user_metadata": 1}, 400, "validation_failed"),
            ({"user_metadata": {"a": 1}, "password": "short"}, 422, "weak_password"),
            ({"app_metadata": {"a": "x" * 1500}, "ban_duration": "876000h"}, 400, "validation_failed"),
        ):
            assert code(self.app.operate("PUT", f"/{user['id']}", body)) == (status, why), body
        assert self.app.operate("GET", f"/{user['id']}").body == user

    def test_unknown_users(self) -> None:
        self.made()
        for user in ("00000000-0000-4000-8000-00000000ffff", "7", EMAIL):
            for method, body, below in (
                ("GET", None, ""),
                ("PUT", {}, ""),
                ("DELETE", None, ""),
                ("GET", None, "/factors"),
            ):
                assert code(self.app.operate(method, f"/{user}{below}", body)) == (404, "user_not_found")

    def test_a_user_is_deleted(self) -> None:
        for body in ({"should_soft_delete": False}, None):
            path = f"/{self.made()['id']}"
            answer = self.app.operate("DELETE", path, {"should_soft_delete": True})
            assert code(answer) == (422, "feature_disabled")
            answer = self.app.operate("DELETE", path, body)
            assert (answer.status, answer.body) == (200, {})
            assert code(self.app.operate("GET", path)) == (404, "user_not_found")

    def test_pages_have_the_newest_first_and_a_total(self) -> None:
        ids = []
        for number in range(5):
            self.app.clock.advance(1)
            ids.append(self.made(f"u{number}@example.test")["id"])
        for query, expected, link in (
            (
                "?page=1&per_page=2",
                ids[:2:-1],
                '<{0}?page=2&per_page=2>; rel="next", <{0}?page=3&per_page=2>; rel="last"',
            ),
            ("?page=3&per_page=2", ids[:1], '<{0}?page=3&per_page=2>; rel="last"'),
            ("?page=9&per_page=2", [], '<{0}?page=3&per_page=2>; rel="last"'),
            ("?page=&per_page=", ids[::-1], '<{0}?page=1&per_page=50>; rel="last"'),
            ("", ids[::-1], '<{0}?page=1&per_page=50>; rel="last"'),
            ("?per_page=1000000", ids[::-1], '<{0}?page=1&per_page=1000>; rel="last"'),
        ):
            answer = self.app.operate("GET", query)
            assert [one["id"] for one in answer.body["users"]] == expected, query
            assert answer.body["aud"] == "authenticated"
            assert answer.response.header("x-total-count") == "5"
            assert answer.response.header("link") == link.format("/auth/v1/admin/users"), query
        for query in ("?page=0", "?page=x", "?per_page=-1", "?page=99999999999999999999"):
            assert code(self.app.operate("GET", query)) == (400, "validation_failed"), query

    def test_only_the_service_key_operates(self) -> None:
        token = self.app.begin_session()["access_token"]
        for method, path in (
            ("GET", "/admin/users"),
            ("POST", "/admin/users"),
            ("GET", "/admin/users/x"),
            ("PUT", "/admin/users/x"),
            ("DELETE", "/admin/users/x"),
            ("GET", "/admin/users/x/factors"),
            ("DELETE", "/admin/users/x/factors/y"),
            ("GET", "/admin/users/x/passkeys"),
            ("DELETE", "/admin/users/x/passkeys/y"),
            ("POST", "/invite"),
            ("POST", "/admin/generate_link"),
        ):
            self.refused(403, "not_admin", method, path)
            self.refused(403, "not_admin", method, path, token=token)
            assert self.app.call(method, f"/auth/v1{path}", token=token).status == 401
            assert self.app.call(method, f"/auth/v1{path}").status == 401
        assert self.app.call("GET", "/auth/v1/admin/users", token=SERVICE_KEY).status == 200

    def test_a_user_without_a_password_confirms_the_address_and_sets_one(self) -> None:
        self.made()
        self.app.ask("POST", "/resend", {"type": "signup", "email": EMAIL})
        (mail,) = self.app.mails
        session = self.app.ask("POST", "/verify", {"type": "email", "token_hash": token_of(mail)}).body
        answer = self.app.ask("PUT", "/user", {"password": PASSWORD}, session["access_token"])
        assert answer.status == 200
        assert self.app.again().status == 200


class WhatIsNotThere(Base):
    def test_other_ways_to_sign_in_are_refused_with_their_codes(self) -> None:
        for method, path, status, why in (
            ("GET", "/authorize?provider=google", 400, "provider_disabled"),
            ("GET", "/callback?code=x", 400, "provider_disabled"),
            ("POST", "/sso", 404, "saml_provider_disabled"),
            ("GET", "/sso/saml/metadata", 404, "saml_provider_disabled"),
            ("POST", "/passkeys/authentication/options", 404, "passkey_disabled"),
            ("GET", "/admin/oauth/clients", 404, "feature_disabled"),
            ("GET", "/oauth/authorizations/1", 404, "feature_disabled"),
            ("GET", "/nothing", 404, "not_found"),
            ("GET", "/otp/more", 404, "not_found"),
            ("GET", "/", 404, "not_found"),
            ("GET", "/%ff", 404, "not_found"),
        ):
            self.refused(status, why, method, path, {} if method == "POST" else None)

    def test_some_only_to_who_is_signed_in(self) -> None:
        token = self.app.begin_session()["access_token"]
        for method, path, status, why in (
            ("GET", "/user/identities/authorize", 404, "manual_linking_disabled"),
            ("DELETE", "/user/identities/1", 404, "manual_linking_disabled"),
        ):
            self.refused(401, "no_authorization", method, path)
            self.refused(status, why, method, path, token=token)

    def test_methods_that_a_path_does_not_have(self) -> None:
        for method, path, allowed in (
            ("DELETE", "/user", "GET, HEAD, OPTIONS, PUT"),
            ("PUT", "/verify", "GET, HEAD, OPTIONS, POST"),
            ("POST", "/admin/users/1", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ):
            answer = self.refused(405, "method_not_allowed", method, path)
            assert answer.response.header("allow") == allowed
            answer = self.app.ask("OPTIONS", path)
            assert (answer.status, answer.response.header("allow")) == (204, allowed)


class Keys(Base):
    def test_none_is_needed_and_a_wrong_one_is_refused(self) -> None:
        assert self.app.call("POST", "/auth/v1/recover", {"email": EMAIL}).status == 200
        cases: list[tuple[str, Any]] = [
            ("", {"apikey": "wrong"}),
            ("?apikey=wrong", {}),
            (f"?apikey={SERVICE_KEY}", {"apikey": ANON_KEY}),
        ]
        for query, headers in cases:
            answer = self.app.call("POST", f"/auth/v1/recover{query}", {"email": EMAIL}, **headers)
            assert (answer.status, answer.body["error_code"]) == (401, "no_authorization")

    def test_a_token_may_come_without_a_key(self) -> None:
        token = self.app.begin_session()["access_token"]
        assert self.app.call("GET", "/auth/v1/user", token=token).status == 200

    def test_a_key_in_the_place_of_a_token_is_nobody(self) -> None:
        for key in (ANON_KEY, SERVICE_KEY):
            answer = self.app.call("GET", "/auth/v1/user", token=key)
            assert (answer.status, answer.body["error_code"]) == (401, "no_authorization")

    def test_a_key_may_be_anywhere_where_it_is_needed(self) -> None:
        self.app = ClientApp(self, require_project_key=True)
        cases: list[tuple[str, Any, int]] = [
            ("", {}, 401),
            ("", {"apikey": ANON_KEY}, 200),
            ("", {"token": ANON_KEY}, 200),
            (f"?apikey={ANON_KEY}", {}, 200),
        ]
        for query, headers, status in cases:
            answer = self.app.call("GET", f"/auth/v1/settings{query}", **headers)
            assert answer.status == status, headers
        assert self.app.call("GET", "/auth/v1/.well-known/jwks.json").status == 200
        token = self.app.begin_session()["access_token"]
        assert self.app.call("GET", "/auth/v1/user", token=token).status == 401
        assert self.app.call("GET", "/auth/v1/user", token=token, apikey=ANON_KEY).status == 200

    def test_secrets_are_not_in_the_log(self) -> None:
        log = logged_until_the_end(self)
        session = self.app.begin_session()
        self.app.call("GET", f"/auth/v1/user?apikey={SERVICE_KEY}", token=session["access_token"])
        self.app.operate("GET", "?apikey=wrong-key")
        assert "/auth/v1/user" in str(log)
        for secret in (SERVICE_KEY, "wrong-key", session["access_token"], session["refresh_token"], PASSWORD):
            assert secret not in str(log)


class Elsewhere(Base):
    def test_the_url_of_a_database_is_one_too(self) -> None:
        token = self.app.begin_session()["access_token"]
        for path, status in (
            ("/dev/db/main/auth/v1/user", 200),
            ("/dev/db/none/auth/v1/user", 404),
            ("/dev/db/main/auth/v1/nothing", 404),
        ):
            assert self.app.call("GET", path, token=token).status == status
        answer = self.app.call("GET", "/dev/db/main/auth/v1/admin/users?per_page=1", apikey=SERVICE_KEY)
        assert (
            answer.response.header("link")
            == '</dev/db/main/auth/v1/admin/users?page=1&per_page=1>; rel="last"'
        )

    def test_pages_may_read_what_clients_look_at(self) -> None:
        answer = self.app.ask("GET", "/user", Origin="https://app.example.test")
        exposed = [
            value for name, value in answer.response.headers if name == "Access-Control-Expose-Headers"
        ]
        assert "X-Supabase-Api-Version, X-Total-Count, Link" in exposed
        assert answer.response.header("access-control-allow-origin") == "*"

    def test_preflights(self) -> None:
        asked = "apikey, authorization, x-client-info, x-supabase-api-version, content-type"
        for path, methods in (
            ("/user", {"GET", "PUT"}),
            ("/factors/1", {"DELETE"}),
            ("/passkeys/1", {"PATCH", "DELETE"}),
        ):
            answer = self.app.call(
                "OPTIONS",
                f"/auth/v1{path}",
                Origin="https://app.example.test",
                Access_Control_Request_Method="PUT",
                Access_Control_Request_Headers=asked,
            )
            assert answer.status == 204
            allowed = answer.response.header("access-control-allow-methods") or ""
            assert methods <= set(allowed.split(", "))
            assert answer.response.header("access-control-allow-headers") == asked

    def test_a_client_without_a_version_gets_the_older_form(self) -> None:
        answer = self.app.call(
            "POST", "/auth/v1/token?grant_type=password", {"email": EMAIL, "password": "x"}
        )
        assert answer.body == {
            "code": 400,
            "error_code": "invalid_credentials",
            "msg": "Invalid login credentials",
        }
        assert answer.response.header("x-supabase-api-version") is None

    def test_what_is_done_is_in_the_audit(self) -> None:
        token = self.app.begin_session()["access_token"]
        user = self.app.ask("PUT", "/user", {"data": {"a": 1}}, token).body
        self.app.operate("PUT", f"/{user['id']}", {"app_metadata": {"b": 1}})
        self.app.ask("POST", "/logout", token=token)
        told = [(event.actor, event.action, event.user_id) for event in self.app.repository.events]
        assert told == [
            ("anonymous", "signup", user["id"]),
            ("user", "set_metadata", user["id"]),
            ("service", "change_user", user["id"]),
            ("user", "logout_global", user["id"]),
        ]
