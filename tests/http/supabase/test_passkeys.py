"""Passkeys at ``/auth/v1``: signing in by one, and keys as second factors."""

from __future__ import annotations

import string
import uuid
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.auth.relying_party import RelyingParty, credential_id_of, user_of
from project_service.auth.values import Credential
from project_service.errors import ApiError
from project_service.settings.model import Auth as AuthSettings
from tests.fakes.authenticator import PRESENT, Authenticator
from tests.fakes.common import ANON_KEY
from tests.http.auth.app import NOW, Answer
from tests.http.supabase.app import EMAIL
from tests.http.supabase.test_auth import OTHERS, code
from tests.http.supabase.test_challenges import claims_of
from tests.http.supabase.test_factors import WithFactors

SITE = "https://app.example.test"
REFUSED, EXPIRED = (400, "webauthn_verification_failed"), (400, "webauthn_challenge_not_found")


class WithPasskeys(WithFactors):
    def setUp(self) -> None:
        super().setUp()
        self.app.reload(passkeys=True)
        self.device = Authenticator(SITE)

    def offer(self, way: str = "authentication", token: str | None = None) -> Any:
        default = self.token if way == "registration" else ANON_KEY
        answer = self.post(f"/passkeys/{way}/options", token or default)
        assert answer.status == 200, answer.body
        return answer.body

    def answer(self, way: str, offered: Any, credential: Any, token: str | None = None) -> Answer:
        default = self.token if way == "registration" else ANON_KEY
        body = {"challenge_id": offered["challenge_id"], "credential": credential}
        return self.post(f"/passkeys/{way}/verify", token or default, **body)

    def register(self, token: str | None = None, device: Authenticator | None = None) -> Any:
        offered = self.offer("registration", token)
        made = (device or self.device).create(offered["options"])
        answer = self.answer("registration", offered, made, token)
        assert answer.status == 200, answer.body
        return answer.body

    def sign_in(self, device: Authenticator | None = None, **more: Any) -> Answer:
        offered = self.offer()
        return self.answer(
            "authentication", offered, (device or self.device).sign(offered["options"], **more)
        )


class SigningIn(WithPasskeys):
    def test_a_passkey_signs_in_without_a_password(self) -> None:
        made = self.register()
        assert set(made) == {"id", "friendly_name", "created_at"}
        self.app.clock.advance(60)
        answer = self.sign_in()
        assert answer.status == 200, answer.body
        assert answer.body["user"]["id"] == self.user_id
        claims = claims_of(answer.body)
        assert claims["amr"] == [{"method": "webauthn", "timestamp": int(NOW) + 60}]
        assert claims["aal"] == "aal1"
        (shown,) = self.app.ask("GET", "/passkeys", token=answer.body["access_token"]).body
        assert shown["id"] == made["id"]
        assert "last_used_at" in shown
        assert ("anonymous", "login_by_passkey", self.user_id) in [
            (one.actor, one.action, one.user_id) for one in self.app.repository.events
        ]

    def test_what_the_page_is_given(self) -> None:
        offered = self.offer("registration")
        assert offered["expires_at"] == int(NOW) + 300
        options = offered["options"]
        assert options["rp"]["id"] == "app.example.test"
        assert options["user"]["name"] == EMAIL
        selection = options["authenticatorSelection"]
        assert (selection["residentKey"], selection["userVerification"]) == ("required", "required")
        assert options["attestation"] == "none"
        options = self.offer()["options"]
        assert (options["rpId"], options["userVerification"]) == ("app.example.test", "required")
        # It says nothing of who has passkeys.
        assert options.get("allowCredentials", []) == []

    def test_the_host_and_the_origins_may_be_others(self) -> None:
        self.app.reload(passkey_rp_id="example.test", passkey_origins=(SITE, "https://b.example.test"))
        assert self.offer("registration")["options"]["rp"]["id"] == "example.test"
        self.register(device=Authenticator("https://b.example.test"))
        self.register()
        assert self.sign_in().status == 200

    def test_a_passkey_of_another_origin_is_refused(self) -> None:
        evil = Authenticator("https://evil.example.test")
        offered = self.offer("registration")
        assert code(self.answer("registration", offered, evil.create(offered["options"]))) == REFUSED
        self.register()
        self.device.origin = "https://evil.example.test"
        assert code(self.sign_in()) == REFUSED

    def test_a_passkey_of_another_host_is_refused(self) -> None:
        self.register()
        for key in self.device.keys.values():
            key.host = "example.test"
        assert code(self.sign_in()) == REFUSED

    def test_a_passkey_that_says_to_be_another_users_is_refused(self) -> None:
        self.register()
        other = self.app.begin_session(OTHERS)["user"]["id"]
        for handle in (uuid.UUID(other).bytes, b"", b"\xff" * 16, b"x" * 64):
            for key in self.device.keys.values():
                key.user = handle
            assert code(self.sign_in()) == REFUSED

    def test_an_unknown_passkey_is_refused(self) -> None:
        self.register()
        stranger = Authenticator(SITE)
        offered = self.offer("registration")
        stranger.create(offered["options"])
        assert code(self.sign_in(stranger)) == REFUSED

    def test_a_signature_by_another_key_is_refused(self) -> None:
        self.register()
        stranger = Authenticator(SITE)
        stranger.create(self.offer("registration")["options"])
        (key_id,), (key,) = self.device.keys, stranger.keys.values()
        stranger.keys = {key_id: key}
        assert code(self.sign_in(stranger)) == REFUSED

    def test_its_user_has_to_be_verified_by_the_device(self) -> None:
        careless = Authenticator(SITE, flags=PRESENT)
        offered = self.offer("registration")
        assert code(self.answer("registration", offered, careless.create(offered["options"]))) == REFUSED
        self.register()
        self.device.flags = PRESENT
        assert code(self.sign_in()) == REFUSED

    def test_a_counter_that_does_not_go_up_is_that_of_a_copy(self) -> None:
        self.register()
        assert self.sign_in().status == 200
        self.device.step = 0
        assert code(self.sign_in()) == REFUSED
        self.device.step = 1
        assert self.sign_in().status == 200

    def test_a_device_may_not_count(self) -> None:
        self.device.step = 0
        self.register()
        assert [self.sign_in().status for _ in range(2)] == [200, 200]

    def test_a_challenge_is_answered_once_in_time_and_for_its_purpose(self) -> None:
        self.register()
        offered = self.offer()
        signed = self.device.sign(offered["options"])
        assert self.answer("authentication", offered, signed).status == 200
        again = self.device.sign(offered["options"])
        assert code(self.answer("authentication", offered, again)) == EXPIRED
        late = self.offer()
        self.app.clock.advance(300)
        assert code(self.answer("authentication", late, self.device.sign(late["options"]))) == EXPIRED
        new = self.offer("registration")
        wrong = self.device.sign({**self.offer()["options"], "challenge": new["options"]["challenge"]})
        assert code(self.answer("authentication", new, wrong)) == EXPIRED
        other = self.offer()
        assert code(self.answer("authentication", other, signed)) == REFUSED
        # Whatever came of the answer.
        right = self.device.sign(other["options"])
        assert code(self.answer("authentication", other, right)) == EXPIRED

    def test_a_challenge_for_a_new_one_is_its_users(self) -> None:
        offered = self.offer("registration")
        made = self.device.create(offered["options"])
        token = self.app.begin_session(OTHERS)["access_token"]
        assert code(self.answer("registration", offered, made, token)) == EXPIRED
        assert self.app.ask("GET", "/passkeys", token=token).body == []

    def test_who_is_kept_out_stays_out(self) -> None:
        self.register()
        self.app.operate("PUT", f"/{self.user_id}", {"ban_duration": "24h"})
        assert code(self.sign_in()) == (400, "user_banned")

    def test_an_address_has_to_be_confirmed_first_where_that_is_asked_for(self) -> None:
        user = self.app.operate("POST", body={"email": OTHERS}).body["id"]
        self.register()
        self.app.reload(confirm_email=True)
        # Somebody who never signed in, whose passkey came by another way.
        key = next(iter(self.app.repository.keys.values()))
        for one in self.device.keys.values():
            one.user = uuid.UUID(user).bytes
        self.app.repository.keys = {key.id: type(key)(key.id, user, "", key.credential, key.created_at)}
        assert code(self.sign_in()) == (400, "email_not_confirmed")

    def test_strangers_are_limited(self) -> None:
        self.register()
        self.app.reload(verifications_max_per_address=2)
        assert self.sign_in().status == 200
        refusal = self.post("/passkeys/authentication/options", ANON_KEY)
        assert code(refusal) == (429, "over_request_rate_limit")

    def test_bodies_that_are_nothing(self) -> None:
        for body in ({}, {"challenge_id": "x"}, {"credential": {"id": "x"}}):
            for way in ("authentication", "registration"):
                answer = self.post(f"/passkeys/{way}/verify", **body)
                assert code(answer) == (400, "validation_failed")
        for credential in ({"id": 1}, {"id": "x", "rawId": "x", "response": [], "type": "public-key"}):
            for way in ("authentication", "registration"):
                answer = self.answer(way, self.offer(way), credential)
                assert code(answer) == REFUSED
        answer = self.post("/passkeys/authentication/verify", challenge_id="x", credential="text")
        assert code(answer) == (400, "validation_failed")


class Managing(WithPasskeys):
    def test_they_are_listed_renamed_and_deleted(self) -> None:
        one = self.register()
        self.app.clock.advance(1)
        two = self.register(device=Authenticator(SITE))
        path = f"/passkeys/{one['id']}"
        renamed = self.app.ask("PATCH", path, {"friendly_name": "laptop"}, self.token)
        assert renamed.body == {**one, "friendly_name": "laptop"}
        for name in ("", "x" * 121, "a\0b"):
            refusal = self.app.ask("PATCH", path, {"friendly_name": name}, self.token)
            assert code(refusal) == (400, "validation_failed")
        assert self.app.ask("GET", "/passkeys", token=self.token).body == [renamed.body, two]
        assert self.app.ask("DELETE", path, token=self.token).status == 204
        assert self.app.ask("GET", "/passkeys", token=self.token).body == [two]
        assert code(self.sign_in()) == REFUSED

    def test_those_of_others_are_not_there(self) -> None:
        made = self.register()
        token = self.app.begin_session(OTHERS)["access_token"]
        for key in (made["id"], str(uuid.uuid4()), "7"):
            for method, body in (("PATCH", {"friendly_name": "mine"}), ("DELETE", None)):
                answer = self.app.ask(method, f"/passkeys/{key}", body, token)
                assert code(answer) == (404, "validation_failed")

    def test_a_device_has_one_and_a_user_ten(self) -> None:
        self.register()
        options = self.offer("registration")["options"]
        assert len(options["excludeCredentials"]) == 1
        for _ in range(9):
            self.register(device=Authenticator(SITE))
        refusal = self.post("/passkeys/registration/options", self.token)
        assert code(refusal) == (422, "too_many_passkeys")

    def test_the_same_key_twice_is_refused(self) -> None:
        offered = self.offer("registration")
        assert self.answer("registration", offered, self.device.create(offered["options"])).status == 200
        # A device that makes the same key again.
        (key_id,) = self.device.keys
        again = self.offer("registration")
        twin = Authenticator(SITE)
        made = twin.create(again["options"])
        known = self.app.repository.keys
        (kept,) = known.values()
        same = Credential(next(iter(twin.keys)), kept.credential.public_key)
        known[kept.id] = type(kept)(kept.id, kept.user_id, "", same, kept.created_at)
        assert code(self.answer("registration", again, made)) == (422, "webauthn_credential_exists")
        assert key_id

    def test_operators_see_and_delete_them(self) -> None:
        made = self.register()
        path = f"/{self.user_id}/passkeys"
        assert self.app.operate("GET", path).body == [made]
        assert self.app.operate("DELETE", f"{path}/{made['id']}").status == 204
        assert self.app.operate("GET", path).body == []
        assert code(self.app.operate("DELETE", f"{path}/{made['id']}")) == (404, "validation_failed")
        for unknown in (str(uuid.uuid4()), "7"):
            assert code(self.app.operate("GET", f"/{unknown}/passkeys")) == (404, "user_not_found")

    def test_with_a_second_factor_they_change_at_aal2_only(self) -> None:
        self.raise_session()
        lesser = self.app.again().body["access_token"]
        refusal = self.post("/passkeys/registration/options", lesser)
        assert code(refusal) == (403, "insufficient_aal")
        offered = self.offer("registration")
        made = self.device.create(offered["options"])
        assert code(self.answer("registration", offered, made, lesser)) == (403, "insufficient_aal")
        kept = self.register()
        refusal = self.app.ask("DELETE", f"/passkeys/{kept['id']}", token=lesser)
        assert code(refusal) == (403, "insufficient_aal")
        # Signing in by one is the first factor.
        session = self.sign_in().body
        refusal = self.app.ask("DELETE", f"/passkeys/{kept['id']}", token=session["access_token"])
        assert code(refusal) == (403, "insufficient_aal")

    def test_they_are_off_unless_switched_on(self) -> None:
        made = self.register()
        self.app.reload(passkeys=False)
        for method, path, body in (
            ("POST", "/passkeys/registration/options", {}),
            ("POST", "/passkeys/registration/verify", {"challenge_id": "x", "credential": {"id": "x"}}),
            ("POST", "/passkeys/authentication/options", {}),
            ("POST", "/passkeys/authentication/verify", {"challenge_id": "x", "credential": {"id": "x"}}),
            ("GET", "/passkeys", None),
            ("PATCH", f"/passkeys/{made['id']}", {"friendly_name": "x"}),
            ("DELETE", f"/passkeys/{made['id']}", None),
        ):
            assert code(self.app.ask(method, path, body, self.token)) == (404, "passkey_disabled"), path
        answer = self.post("/factors", factor_type="webauthn")
        assert code(answer) == (422, "mfa_webauthn_enroll_not_enabled")


class AsSecondFactors(WithPasskeys):
    def enroll_key(self) -> Any:
        answer = self.post("/factors", factor_type="webauthn", friendly_name="key")
        assert answer.status == 200, answer.body
        assert answer.body == {"id": answer.body["id"], "type": "webauthn", "friendly_name": "key"}
        return answer.body

    def ask_for(self, factor: Any, kind: str, token: str | None = None) -> Any:
        body = {"webauthn": {"rpId": "app.example.test", "rpOrigins": [SITE]}}
        answer = self.post(f"/factors/{factor['id']}/challenge", token, **body)
        assert (answer.status, answer.body["type"]) == (200, "webauthn"), answer.body
        assert answer.body["webauthn"]["type"] == kind
        return answer.body

    def show(self, factor: Any, asked: Any, given_: Any, token: str | None = None) -> Answer:
        webauthn = {
            "type": asked["webauthn"]["type"],
            "rpId": "app.example.test",
            "credential_response": given_,
        }
        path = f"/factors/{factor['id']}/verify"
        return self.post(path, token, challenge_id=asked["id"], webauthn=webauthn)

    def options(self, asked: Any) -> Mapping[str, Any]:
        options: Mapping[str, Any] = asked["webauthn"]["credential_options"]["publicKey"]
        return options

    def verified_key(self) -> Any:
        factor = self.enroll_key()
        asked = self.ask_for(factor, "create")
        answer = self.show(factor, asked, self.device.create(self.options(asked)))
        assert answer.status == 200, answer.body
        self.session = answer.body
        return factor

    def test_a_key_raises_the_session(self) -> None:
        factor = self.verified_key()
        assert claims_of(self.session)["aal"] == "aal2"
        assert [one["method"] for one in claims_of(self.session)["amr"]] == ["webauthn", "password"]
        (shown,) = self.user()["factors"]
        assert (shown["factor_type"], shown["status"]) == ("webauthn", "verified")
        lesser = self.app.again().body["access_token"]
        asked = self.ask_for(factor, "request", lesser)
        assert len(self.options(asked)["allowCredentials"]) == 1
        raised = self.show(factor, asked, self.device.sign(self.options(asked)), lesser)
        assert claims_of(raised.body)["aal"] == "aal2"

    def test_the_user_need_not_be_verified_by_it(self) -> None:
        self.device.flags = PRESENT
        self.verified_key()

    def test_a_key_of_a_factor_does_not_sign_in(self) -> None:
        self.verified_key()
        assert code(self.sign_in()) == REFUSED

    def test_a_passkey_that_signs_in_does_not_show_the_factor(self) -> None:
        self.register()
        (passkey,) = self.device.keys
        factor = self.verified_key()
        lesser = self.app.again().body["access_token"]
        asked = self.ask_for(factor, "request", lesser)
        signed = self.device.sign(self.options(asked), passkey)
        assert code(self.show(factor, asked, signed, lesser)) == REFUSED

    def test_another_origin_an_old_counter_and_an_answered_challenge_are_refused(self) -> None:
        factor = self.verified_key()
        asked = self.ask_for(factor, "request")
        self.device.origin = "https://evil.example.test"
        assert code(self.show(factor, asked, self.device.sign(self.options(asked)))) == REFUSED
        self.device.origin = SITE
        assert self.show(factor, asked, self.device.sign(self.options(asked))).status == 200
        refusal = self.show(factor, asked, self.device.sign(self.options(asked)))
        assert code(refusal) == (422, "mfa_challenge_expired")
        asked = self.ask_for(factor, "request")
        for key in self.device.keys.values():
            key.count = 0
        assert code(self.show(factor, asked, self.device.sign(self.options(asked)))) == REFUSED

    def test_the_challenge_is_for_its_session(self) -> None:
        factor = self.verified_key()
        lesser = self.app.again().body["access_token"]
        asked = self.ask_for(factor, "request")
        refusal = self.show(factor, asked, self.device.sign(self.options(asked)), lesser)
        assert code(refusal) == (422, "mfa_challenge_expired")

    def test_a_key_is_not_made_anew_for_a_factor_that_has_one(self) -> None:
        factor = self.enroll_key()
        one, two = self.ask_for(factor, "create"), self.ask_for(factor, "create")
        made = self.device.create(self.options(one))
        assert self.show(factor, one, made).status == 200
        thief = Authenticator(SITE).create(self.options(two))
        assert code(self.show(factor, two, thief)) == (422, "mfa_challenge_expired")

    def test_wrong_answers_are_limited(self) -> None:
        self.app.reload(mfa_failures_max=2)
        factor = self.verified_key()
        asked = self.ask_for(factor, "request")
        for _ in range(2):
            assert code(self.show(factor, asked, {"id": "x"})) == REFUSED
        right = self.device.sign(self.options(asked))
        assert code(self.show(factor, asked, right)) == (429, "over_request_rate_limit")

    def test_a_code_is_no_key_and_a_key_no_code(self) -> None:
        factor, totp = self.enroll_key(), self.enroll()
        challenge = self.ask_for(factor, "create")["id"]
        refusal = self.post(f"/factors/{factor['id']}/verify", challenge_id=challenge, code="123456")
        assert code(refusal) == (422, "mfa_verification_failed")
        asked = {"id": self.challenge(totp), "webauthn": {"type": "create"}}
        assert code(self.show(totp, asked, {"id": "x"})) == (422, "mfa_challenge_expired")


ALPHABET = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}-_"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.sampled_from(
    (
        *("id", "rawId", "type", "response", "clientDataJSON", "attestationObject", "authenticatorData"),
        *("signature", "userHandle", "transports"),
    )
)
CREDENTIALS = st.dictionaries(MEMBERS, JSON_VALUES | st.dictionaries(MEMBERS, JSON_VALUES, max_size=5))


class Parsing(SynchronousTestCase):
    """Whatever somebody sends is a refusal, not a failure."""

    party = RelyingParty.of(AuthSettings(passkeys=True, site_url=f"{SITE}/"))

    def refuses(self, function: Any, *args: Any, **more: Any) -> None:
        with self.assertRaises(ApiError) as caught:
            function(*args, **more)
        self.assertEqual(caught.exception.code, "passkey_verification_failed")

    @given(CREDENTIALS)
    def test_of_any_object(self, credential: dict[str, Any]) -> None:
        known = Credential(b"x", b"y")
        self.refuses(self.party.created, credential, b"c" * 32, signs_in=True)
        self.refuses(self.party.signed, credential, b"c" * 32, known, signs_in=True)
        self.refuses(user_of, credential)
        self.refuses(credential_id_of, {**credential, "response": None})

    @given(st.data())
    def test_of_any_change_of_a_good_one(self, data: st.DataObject) -> None:
        device = Authenticator(SITE)
        user = str(uuid.uuid4())
        options = self.party.creation_options(b"c" * 32, user, "ada", (), signs_in=True)
        made = device.create(options)
        known = self.party.created(made, b"c" * 32, signs_in=True)
        self.assertEqual((known.transports, known.sign_count), (("internal",), 0))
        asked = self.party.request_options(b"d" * 32, (), signs_in=True)
        signed = device.sign(asked)
        self.assertEqual(user_of(signed), user)
        self.assertEqual(self.party.signed(signed, b"d" * 32, known, signs_in=True).sign_count, 1)
        name = data.draw(st.sampled_from(("clientDataJSON", "authenticatorData", "signature")))
        text = signed["response"][name]
        # Not the last character, some bits of which mean nothing.
        at = data.draw(st.integers(0, 10**6)) % (len(text) - 1)
        other = ALPHABET[(ALPHABET.index(text[at]) + data.draw(st.integers(1, 63))) % 64]
        broken = {**signed, "response": {**signed["response"], name: text[:at] + other + text[at + 1 :]}}
        self.refuses(self.party.signed, broken, b"d" * 32, known, signs_in=True)


class Off(SynchronousTestCase):
    def test_without_a_host_there_is_no_relying_party(self) -> None:
        for settings in (AuthSettings(), AuthSettings(passkeys=True)):
            with self.assertRaises(ApiError) as caught:
                RelyingParty.of(settings)
            self.assertEqual(caught.exception.code, "passkey_disabled")
