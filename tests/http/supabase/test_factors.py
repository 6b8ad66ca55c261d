"""Second factors at ``/auth/v1``: codes by time, recovery codes, and what needs them (``aal2``)."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

import pyotp

from tests.http.auth.app import NOW, PASSWORD, Answer
from tests.http.supabase.app import EMAIL, ClientApp, code_of
from tests.http.supabase.test_auth import OTHERS, Base, code
from tests.http.supabase.test_challenges import claims_of

NEW_PASSWORD = "another horse battery"


class WithFactors(Base):
    def setUp(self) -> None:
        self.app = ClientApp(self, site_url="https://app.example.test/")
        self.session: Any = self.app.begin_session()
        self.user_id = self.session["user"]["id"]

    @property
    def token(self) -> str:
        return str(self.session["access_token"])

    def post(self, path: str, token: str | None = None, **body: Any) -> Answer:
        return self.app.ask("POST", path, body, self.token if token is None else token)

    def enroll(self, token: str | None = None, **more: Any) -> Any:
        answer = self.post("/factors", token, factor_type="totp", **more)
        assert answer.status == 200, answer.body
        return answer.body

    def now_code(self, factor: Any, later: int = 0) -> str:
        return pyotp.TOTP(factor["totp"]["secret"]).at(int(self.app.clock.seconds()) + later)

    def challenge(self, factor: Any, token: str | None = None) -> str:
        answer = self.post(f"/factors/{factor['id']}/challenge", token, factorId=factor["id"])
        assert answer.status == 200, answer.body
        return str(answer.body["id"])

    def verify(
        self, factor: Any, given: str | None = None, token: str | None = None, challenge: str | None = None
    ) -> Answer:
        given = self.now_code(factor) if given is None else given
        challenge = self.challenge(factor, token) if challenge is None else challenge
        return self.post(f"/factors/{factor['id']}/verify", token, challenge_id=challenge, code=given)

    def raise_session(self, **more: Any) -> Any:
        """A verified factor, and ``session`` at aal2."""
        factor = self.enroll(**more)
        answer = self.verify(factor)
        assert answer.status == 200, answer.body
        self.session = answer.body
        # The code is used; the next step has another.
        self.app.clock.advance(30)
        return factor

    def user(self, token: str | None = None) -> Any:
        return self.app.ask("GET", "/user", token=self.token if token is None else token).body


class Enrolling(WithFactors):
    def test_a_factor_comes_with_its_secret_and_a_picture_of_it(self) -> None:
        factor = self.enroll(friendly_name="My phone")
        assert (factor["type"], factor["friendly_name"]) == ("totp", "My phone")
        uri = urlsplit(factor["totp"]["uri"])
        assert (uri.scheme, uri.netloc) == ("otpauth", "totp")
        assert unquote(uri.path) == f"/app.example.test:{EMAIL}"
        assert parse_qs(uri.query) == {
            "secret": [factor["totp"]["secret"]],
            "issuer": ["app.example.test"],
        }
        assert len(factor["totp"]["secret"]) == 32
        picture = factor["totp"]["qr_code"]
        assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
        # In a data URL it would begin the fragment.
        assert "#" not in picture
        (shown,) = self.user()["factors"]
        assert {name: shown[name] for name in ("id", "friendly_name", "factor_type", "status")} == {
            "id": factor["id"],
            "friendly_name": "My phone",
            "factor_type": "totp",
            "status": "unverified",
        }
        assert factor["totp"]["secret"] not in str(self.user())

    def test_the_application_may_say_who_issues_it(self) -> None:
        uri = urlsplit(self.enroll(issuer="My Ünion: 1")["totp"]["uri"])
        assert parse_qs(uri.query)["issuer"] == ["My Ünion: 1"]
        longest = self.enroll(friendly_name="b", issuer="\U0001f600" * 64)
        assert ElementTree.fromstring(longest["totp"]["qr_code"]) is not None

    def test_a_user_without_factors_has_no_such_member(self) -> None:
        assert "factors" not in self.user()

    def test_what_cannot_be_enrolled(self) -> None:
        for body, status, why in (
            ({"factor_type": "phone", "phone": "+4912345"}, 422, "mfa_phone_enroll_not_enabled"),
            ({"factor_type": "webauthn"}, 422, "mfa_webauthn_enroll_not_enabled"),
            ({"factor_type": "sms"}, 400, "validation_failed"),
            ({}, 400, "validation_failed"),
            ({"factor_type": "totp", "issuer": "x" * 65}, 400, "validation_failed"),
            ({"factor_type": "totp", "friendly_name": "x" * 121}, 400, "validation_failed"),
        ):
            assert code(self.post("/factors", **body)) == (status, why), body
        assert "factors" not in self.user()

    def test_names_differ_and_there_are_ten_at_most(self) -> None:
        self.enroll()
        assert code(self.post("/factors", factor_type="totp")) == (422, "mfa_factor_name_conflict")
        for number in range(9):
            self.enroll(friendly_name=str(number))
        refusal = self.post("/factors", factor_type="totp", friendly_name="more")
        assert code(refusal) == (422, "too_many_enrolled_mfa_factors")
        # Those that nobody has verified make room after five minutes.
        self.app.clock.advance(300)
        self.enroll()
        assert len(self.user()["factors"]) == 1

    def test_only_who_is_signed_in(self) -> None:
        for method, path in (
            ("POST", "/factors"),
            ("POST", "/factors/recovery-codes"),
            ("POST", "/factors/1/challenge"),
            ("POST", "/factors/1/verify"),
            ("DELETE", "/factors/1"),
        ):
            self.refused(401, "no_authorization", method, path)

    def test_a_factor_of_somebody_else_is_not_there(self) -> None:
        factor = self.enroll()
        token = self.app.begin_session(OTHERS)["access_token"]
        challenge = self.challenge(factor)
        body = {"challenge_id": challenge, "code": self.now_code(factor)}
        for key in (factor["id"], str(uuid.uuid4()), "7"):
            for method, path, sent in (
                ("POST", f"/factors/{key}/challenge", {}),
                ("POST", f"/factors/{key}/verify", body),
                ("DELETE", f"/factors/{key}", None),
            ):
                answer = self.app.ask(method, path, sent, token)
                assert code(answer) == (404, "mfa_factor_not_found"), path


class Verifying(WithFactors):
    def test_a_code_raises_the_session_and_all_its_later_tokens(self) -> None:
        factor, first = self.enroll(), self.session
        assert claims_of(first)["aal"] == "aal1"
        self.app.clock.advance(60)
        answer = self.post(f"/factors/{factor['id']}/challenge")
        assert answer.body["type"] == "totp"
        assert answer.body["expires_at"] == int(NOW) + 60 + 300
        raised = self.verify(factor, challenge=answer.body["id"]).body
        assert raised["user"]["factors"][0]["status"] == "verified"
        for _ in range(2):
            claims = claims_of(raised)
            assert (claims["aal"], claims["session_id"]) == ("aal2", claims_of(first)["session_id"])
            assert claims["amr"] == [
                {"method": "totp", "timestamp": int(NOW) + 60},
                {"method": "password", "timestamp": int(NOW)},
            ]
            self.app.clock.advance(3600)
            answer = self.app.ask(
                "POST", "/token?grant_type=refresh_token", {"refresh_token": raised["refresh_token"]}
            )
            assert answer.status == 200
            raised = answer.body

    def test_a_code_with_spaces_is_that_code(self) -> None:
        factor = self.enroll()
        right = self.now_code(factor)
        assert self.verify(factor, f" {right[:3]} {right[3:]} ").status == 200

    def test_the_steps_beside_this_one_count_and_no_others(self) -> None:
        factor = self.enroll()
        for later in (-60, 60):
            refusal = self.verify(factor, self.now_code(factor, later))
            assert code(refusal) == (422, "mfa_verification_failed")
        for later in (-30, 0, 30):
            assert self.verify(factor, self.now_code(factor, later)).status == 200

    def test_a_code_works_once(self) -> None:
        factor = self.enroll()
        right = self.now_code(factor)
        assert self.verify(factor, right).status == 200
        assert code(self.verify(factor, right)) == (422, "mfa_verification_failed")
        self.app.clock.advance(30)
        assert code(self.verify(factor, right)) == (422, "mfa_verification_failed")
        assert self.verify(factor).status == 200

    def test_a_challenge_is_for_its_factor_session_and_five_minutes(self) -> None:
        factor, other = self.enroll(), self.enroll(friendly_name="other")
        challenge = self.challenge(factor)
        again = self.app.again().body["access_token"]
        for of, token, key in (
            (other, None, challenge),
            (factor, again, challenge),
            (factor, None, str(uuid.uuid4())),
            (factor, None, "no id"),
        ):
            refusal = self.verify(of, token=token, challenge=key)
            assert code(refusal) == (422, "mfa_challenge_expired")
        self.app.clock.advance(300)
        assert code(self.verify(factor, challenge=challenge)) == (422, "mfa_challenge_expired")
        challenge = self.challenge(factor)
        assert self.verify(factor, challenge=challenge).status == 200
        self.app.clock.advance(30)
        assert code(self.verify(factor, challenge=challenge)) == (422, "mfa_challenge_expired")

    def test_a_body_without_what_it_needs(self) -> None:
        factor = self.enroll()
        path = f"/factors/{factor['id']}/verify"
        for body in ({}, {"challenge_id": self.challenge(factor)}, {"code": "123456"}):
            assert code(self.post(path, **body)) == (400, "validation_failed")

    def test_sessions_without_the_factor_end(self) -> None:
        others = self.app.again().body
        factor = self.raise_session()
        self.refused(403, "session_not_found", "GET", "/user", token=others["access_token"])
        assert self.app.ask("GET", "/user", token=self.token).status == 200
        later = self.app.again().body
        assert claims_of(later)["aal"] == "aal1"
        assert self.verify(factor, token=later["access_token"]).status == 200
        assert self.app.ask("GET", "/user", token=self.token).status == 200

    def test_the_refresh_token_from_before_is_void(self) -> None:
        before = self.session["refresh_token"]
        self.raise_session()
        answer = self.app.ask("POST", "/token?grant_type=refresh_token", {"refresh_token": before})
        assert code(answer) == (400, "refresh_token_already_used")

    def test_wrong_codes_are_limited_by_factor_and_do_not_lock_the_password(self) -> None:
        factor = self.raise_session()
        right = self.now_code(factor)
        wrong = f"{(int(right) + 1) % 10**6:06}"
        token = self.app.again().body["access_token"]
        for _ in range(10):
            assert code(self.verify(factor, wrong, token)) == (422, "mfa_verification_failed")
        limited = self.verify(factor, right, token)
        assert code(limited) == (429, "over_request_rate_limit")
        assert 0 < int(limited.response.header("retry-after") or 0) <= 900
        # Recovery codes are guesses too.
        assert code(self.verify(factor, "aaaa-bbbb-cccc-dddd", token)) == (429, "over_request_rate_limit")
        assert self.app.again().status == 200
        self.app.clock.advance(901)
        assert self.verify(factor, token=token).status == 200
        failures = [one for one in self.app.repository.events if one.action == "verify_factor"]
        assert [one.result for one in failures] == ["ok", *["factor_verification_failed"] * 10, "ok"]

    def test_the_limit_can_be_another_or_none(self) -> None:
        self.app.reload(mfa_failures_max=1)
        factor = self.enroll()
        wrong = f"{(int(self.now_code(factor)) + 1) % 10**6:06}"
        assert code(self.verify(factor, wrong)) == (422, "mfa_verification_failed")
        assert code(self.verify(factor)) == (429, "over_request_rate_limit")
        self.app.reload(mfa_failures_max=0)
        assert self.verify(factor).status == 200

    def test_expired_challenges_are_no_wrong_codes(self) -> None:
        self.app.reload(mfa_failures_max=1)
        factor = self.enroll()
        for _ in range(3):
            refusal = self.verify(factor, challenge=str(uuid.uuid4()))
            assert code(refusal) == (422, "mfa_challenge_expired")
        assert self.verify(factor).status == 200


class Deleting(WithFactors):
    def test_a_factor_that_is_gone_raises_no_session_any_more(self) -> None:
        factor = self.raise_session()
        answer = self.app.ask("DELETE", f"/factors/{factor['id']}", token=self.token)
        assert (answer.status, answer.body) == (200, {"id": factor["id"]})
        assert "factors" not in self.user()
        renewed = self.app.ask(
            "POST", "/token?grant_type=refresh_token", {"refresh_token": self.session["refresh_token"]}
        ).body
        assert claims_of(renewed)["aal"] == "aal1"

    def test_operators_see_and_delete_factors(self) -> None:
        factor = self.raise_session()
        (shown,) = self.app.operate("GET", f"/{self.user_id}/factors").body
        assert (shown["id"], shown["status"]) == (factor["id"], "verified")
        assert self.app.operate("GET", f"/{self.user_id}").body["factors"] == [shown]
        path = f"/{self.user_id}/factors/{factor['id']}"
        answer = self.app.operate("DELETE", path)
        assert (answer.status, answer.body) == (200, {"id": factor["id"]})
        assert self.app.operate("GET", f"/{self.user_id}/factors").body == []
        assert code(self.app.operate("DELETE", path)) == (404, "mfa_factor_not_found")
        unknown = f"/{uuid.uuid4()}/factors/{factor['id']}"
        assert code(self.app.operate("DELETE", unknown)) == (404, "user_not_found")
        told = [(one.actor, one.action) for one in self.app.repository.events]
        assert told[-1] == ("service", "delete_factors")


class NeedsAal2(WithFactors):
    """With a verified factor, password, address, factors and identities change at aal2 only."""

    def setUp(self) -> None:
        super().setUp()
        self.factor = self.raise_session()
        self.lesser = self.app.again().body["access_token"]

    def refused_lesser(self, method: str, path: str, body: Any = None) -> None:
        before = self.user()
        assert code(self.app.ask(method, path, body, self.lesser)) == (403, "insufficient_aal"), path
        assert self.user() == before

    def test_the_password(self) -> None:
        changes = {"password": NEW_PASSWORD}
        for more in ({}, {"current_password": PASSWORD}):
            self.refused_lesser("PUT", "/user", {**changes, **more})
        assert self.app.again().status == 200
        assert self.app.ask("PUT", "/user", changes, self.token).status == 200

    def test_the_password_by_the_own_path(self) -> None:
        changes = {"password": NEW_PASSWORD, "current_password": PASSWORD}
        refusal = self.app.call("PATCH", "/auth/user", changes, token=self.lesser)
        assert (refusal.status, refusal.code) == (403, "insufficient_aal")
        assert self.app.call("PATCH", "/auth/user", changes, token=self.token).status == 200

    def test_the_end_of_the_account(self) -> None:
        body = {"current_password": PASSWORD}
        refusal = self.app.call("DELETE", "/auth/user", body, token=self.lesser)
        assert (refusal.status, refusal.code) == (403, "insufficient_aal")
        assert self.app.call("DELETE", "/auth/user", body, token=self.token).status == 200

    def test_the_address(self) -> None:
        self.refused_lesser("PUT", "/user", {"email": OTHERS})
        assert self.app.mails == []
        assert self.app.ask("PUT", "/user", {"email": OTHERS}, self.token).status == 200

    def test_factors(self) -> None:
        self.refused_lesser("POST", "/factors", {"factor_type": "totp", "friendly_name": "mine"})
        self.refused_lesser("DELETE", f"/factors/{self.factor['id']}")
        self.refused_lesser("POST", "/factors/recovery-codes", {})
        assert self.enroll(friendly_name="another")

    def test_a_new_factor_is_not_a_way_around_the_first(self) -> None:
        """One that was enrolled before the first was verified."""
        app = self.app
        session = app.begin_session(OTHERS)
        token = session["access_token"]
        first = self.enroll(token, friendly_name="first")
        answer = self.verify(first, token=token)
        assert answer.status == 200
        raised = answer.body["access_token"]
        second = self.enroll(raised, friendly_name="second")
        lesser = app.again(OTHERS).body["access_token"]
        assert code(self.verify(second, token=lesser)) == (403, "insufficient_aal")
        assert self.verify(second, token=raised).status == 200

    def test_what_is_not_sensitive_does_not(self) -> None:
        body = {"data": {"a": 1}, "email": EMAIL}
        assert self.app.ask("PUT", "/user", body, self.lesser).status == 200
        changes = {"metadata": {"b": 1}}
        assert self.app.call("PATCH", "/auth/user", changes, token=self.lesser).status == 200

    def test_identities(self) -> None:
        self.app.reload(manual_linking=True)
        (identity,) = self.user()["identities"]
        self.refused_lesser("DELETE", f"/user/identities/{identity['identity_id']}")
        at_aal2 = self.app.ask("DELETE", f"/user/identities/{identity['identity_id']}", token=self.token)
        assert code(at_aal2) != (403, "insufficient_aal")

    def test_a_recovery_keeps_factors_and_ends_other_sessions(self) -> None:
        self.app.operate("PUT", f"/{self.user_id}", {"email_confirm": True})
        self.app.ask("POST", "/recover", {"email": EMAIL})
        (mail,) = self.app.mails
        body = {"type": "recovery", "email": EMAIL, "token": code_of(mail)}
        recovered = self.app.ask("POST", "/verify", body).body["access_token"]
        refusal = self.app.ask("PUT", "/user", {"password": NEW_PASSWORD}, recovered)
        assert code(refusal) == (403, "insufficient_aal")
        raised = self.verify(self.factor, token=recovered).body["access_token"]
        answer = self.app.ask("PUT", "/user", {"password": NEW_PASSWORD}, raised)
        assert answer.body["factors"][0]["status"] == "verified"
        self.refused(403, "session_not_found", "GET", "/user", token=self.token)

    def test_a_factor_that_is_not_verified_asks_for_nothing(self) -> None:
        token = self.app.begin_session(OTHERS)["access_token"]
        self.enroll(token)
        assert self.app.ask("PUT", "/user", {"password": NEW_PASSWORD}, token).status == 200

    def test_a_token_that_says_aal2_is_not_enough_once_its_session_has_lost_the_factor(self) -> None:
        before = self.token
        other = self.enroll(friendly_name="other")
        assert self.verify(other, token=before).status == 200
        lesser = self.app.again().body["access_token"]
        third = self.verify(self.factor, token=lesser).body["access_token"]
        self.app.ask("DELETE", f"/factors/{other['id']}", token=third)
        refusal = self.app.ask("PUT", "/user", {"password": NEW_PASSWORD}, before)
        assert code(refusal) == (403, "insufficient_aal")


class RecoveryCodes(WithFactors):
    def codes(self) -> list[str]:
        answer = self.post("/factors/recovery-codes")
        assert answer.status == 200, answer.body
        assert answer.response.header("cache-control") == "no-store"
        return list(answer.body["codes"])

    def test_ten_are_made_and_each_works_once_in_place_of_a_code(self) -> None:
        factor = self.raise_session()
        codes = self.codes()
        assert len(set(codes)) == 10
        lesser = self.app.again().body["access_token"]
        raised = self.verify(factor, codes[0], lesser).body
        assert claims_of(raised)["aal"] == "aal2"
        assert code(self.verify(factor, codes[0])) == (422, "mfa_verification_failed")
        # As somebody types it.
        typed = codes[1].replace("-", " ").upper()
        assert self.verify(factor, typed).status == 200

    def test_new_ones_end_those_before(self) -> None:
        factor = self.raise_session()
        before, after = self.codes(), self.codes()
        assert not set(before) & set(after)
        assert code(self.verify(factor, before[0])) == (422, "mfa_verification_failed")
        assert self.verify(factor, after[0]).status == 200

    def test_without_a_factor_there_are_none(self) -> None:
        assert code(self.post("/factors/recovery-codes")) == (403, "insufficient_aal")

    def test_none_are_made_once_the_last_factor_is_gone(self) -> None:
        """The token still says aal2; codes that nobody sees among the factors would work for the next one."""
        factor = self.raise_session()
        assert self.app.ask("DELETE", f"/factors/{factor['id']}", token=self.token).status == 200
        assert claims_of(self.session)["aal"] == "aal2"
        assert code(self.post("/factors/recovery-codes")) == (403, "insufficient_aal")
        assert not self.app.repository.recovery_codes.get(self.user_id)

    def test_they_work_for_their_user_only(self) -> None:
        self.raise_session()
        codes = self.codes()
        self.session = self.app.begin_session(OTHERS)
        factor = self.raise_session()
        assert code(self.verify(factor, codes[0])) == (422, "mfa_verification_failed")

    def test_only_digests_are_kept(self) -> None:
        self.raise_session()
        codes = self.codes()
        kept = str(self.app.repository.recovery_codes) + str(self.app.repository.events)
        assert not any(one in kept or one.replace("-", "") in kept for one in codes)
