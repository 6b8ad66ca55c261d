"""What a project's hooks decide: who becomes a user, what access tokens say, and who sends e-mails."""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import Any

import orjson
import psycopg2.errors
from attrs import evolve

from project_service.settings.model import Hooks, Secret
from tests.fakes.common import SERVICE_KEY
from tests.http.auth.app import PASSWORD
from tests.http.supabase.app import EMAIL
from tests.http.supabase.test_auth import OTHERS, code
from tests.http.supabase.test_challenges import claims_of
from tests.http.supabase.test_providers import API, ByProvider
from tests.live.outgoing_server import ok

URL = "https://hooks.example.test"
SECRET = Secret(f"v1,whsec_{b64encode(b'k' * 24).decode()}")
SERVICE = (SERVICE_KEY, SERVICE_KEY)
REFUSAL = {"error": {"http_code": 403, "message": "Only for people of Example."}}


def fails(event: Any) -> Any:
    raise psycopg2.errors.QueryCanceled


class Hooked(ByProvider):
    def setUp(self) -> None:
        self.start(anonymous_users=True, manual_linking=True)
        self.events: list[Any] = []
        self.answer: Any = {}

    def asks(self, name: str, answer: Any = None) -> None:
        """Have the hook ``name`` asked, a function of the database that answers ``answer``, or calls it."""

        def function(event: Any) -> Any:
            self.events.append(event)
            return answer(event) if callable(answer) else answer or {}

        self.app.internet.functions[f"public.{name}"] = function
        self.set_hook(name, f"sql:public.{name}")

    def set_hook(self, name: str, where: str) -> None:
        changes: dict[str, Any] = {name: where, f"{name}_secret": SECRET}
        self.app.reload(hooks=evolve(self.app.settings.auth.hooks, **changes))


class BeforeAUserIsCreated(Hooked):
    def ways(self) -> dict[str, Any]:
        """Every way in which somebody becomes a user by themselves, or is invited; each is asked as somebody new."""

        def post(path: str, **body: Any) -> Any:
            return self.app.ask("POST", path, body)

        invitation = {"email": "c@example.test"}
        links = {"type": "signup", "email": "d@example.test", "password": PASSWORD}
        by_link = {"type": "magiclink", "email": "e@example.test"}
        return {
            "signup": lambda: post("/signup", email="a@example.test", password=PASSWORD),
            "anonymous": lambda: post("/signup", data={"theme": "dark"}),
            "otp": lambda: post("/otp", email="b@example.test"),
            "invite": lambda: self.app.ask("POST", "/invite", invitation, *SERVICE),
            "link": lambda: self.app.ask("POST", "/admin/generate_link", links, *SERVICE),
            "magic": lambda: self.app.ask("POST", "/admin/generate_link", by_link, *SERVICE),
            "id_token": lambda: self.by_token(self.there.id_token()),
            "plain": lambda: self.app.sign_up("f@example.test"),
        }

    def test_every_way_is_asked_about(self) -> None:
        self.asks("before_user_created")
        for name, way in self.ways().items():
            before = len(self.events)
            assert way().status in (200, 201), name
            (event,) = self.events[before:]
            assert event["metadata"]["name"] == "before-user-created"
            known = self.app.repository.accounts[event["user"]["id"]].user
            assert event["user"]["email"] == known.email
            assert event["user"]["is_anonymous"] is (name == "anonymous")
        assert self.events[0]["metadata"]["ip_address"] == "192.0.2.7"

    def test_each_can_be_refused(self) -> None:
        self.asks("before_user_created", REFUSAL)
        for name, way in self.ways().items():
            answer = way()
            assert answer.status == 403, name
            assert b"hook_refused" in answer.response.body and b"people of Example" in answer.response.body
        assert self.app.repository.accounts == {}
        assert self.app.mails == []
        _, told = self.browser.sign_in()
        assert (told["error_code"], told["error_description"]) == (
            "hook_refused",
            "Only for people of Example.",
        )
        assert self.app.repository.identities == []

    def test_a_hook_that_fails_refuses(self) -> None:
        self.asks("before_user_created", fails)
        for name, way in self.ways().items():
            answer = way()
            assert answer.status == 500, name
            assert b"hook_failed" in answer.response.body
        assert self.app.repository.accounts == {}

    def test_who_is_a_user_already_is_not_asked_about(self) -> None:
        self.app.begin_session()
        self.asks("before_user_created", REFUSAL)
        assert self.app.ask("POST", "/otp", {"email": EMAIL}).status == 200
        assert len(self.app.mails) == 1
        assert self.app.again().status == 200
        assert "access_token" in self.browser.sign_in()[1]
        assert self.events == []

    def test_nor_is_whoever_an_operator_creates(self) -> None:
        self.asks("before_user_created", REFUSAL)
        assert self.app.operate("POST", "", {"email": OTHERS}).status == 200
        assert self.events == []

    def test_it_judges_captcha_tokens(self) -> None:
        self.asks("before_user_created")
        meta = {"captcha_token": "solved"}
        for path, more in (("/signup", {"password": PASSWORD}), ("/otp", {})):
            body = {"email": f"{path[1:]}@example.test", **more, "gotrue_meta_security": meta}
            assert self.app.ask("POST", path, body).status == 200
        assert self.by_token(self.there.id_token(), gotrue_meta_security=meta).status == 200
        assert [one["metadata"]["captcha_token"] for one in self.events] == ["solved"] * 3

    def test_what_is_no_captcha_token_is_left_out(self) -> None:
        self.asks("before_user_created")
        body = {"email": EMAIL, "password": PASSWORD}
        wrongs: tuple[Any, ...] = ([], "solved")
        for wrong in wrongs:
            answer = self.app.ask("POST", "/signup", {**body, "gotrue_meta_security": wrong})
            assert code(answer) == (400, "validation_failed")
        for meta in ({}, {"captcha_token": None}, {"captcha_token": "x" * 4097}):
            answer = self.app.ask("POST", "/signup", {**body, "gotrue_meta_security": meta})
            body["email"] = f"a{body['email']}"
            assert answer.status == 200
        assert not [one for one in self.events if "captcha_token" in one["metadata"]]

    def test_a_refused_sign_up_counts(self) -> None:
        self.asks("before_user_created", REFUSAL)
        self.app.reload(signups_max_per_address=1)
        assert self.app.sign_up().status == 403
        assert self.app.sign_up().status == 429


class TheClaimsOfAToken(Hooked):
    @staticmethod
    def with_role(event: Any) -> Any:
        return {"claims": {**event["claims"], "user_role": "admin"}}

    def test_it_is_asked_at_each_minting(self) -> None:
        self.asks("custom_access_token", self.with_role)
        session = self.app.begin_session()
        grown = {"refresh_token": session["refresh_token"]}
        refreshed = self.app.ask("POST", "/token?grant_type=refresh_token", grown).body
        self.there.person["email"] = "bob@example.test"
        _, by_provider = self.browser.sign_in()
        guest = self.app.ask("POST", "/signup", {"data": {}}).body
        for one in (session, refreshed, by_provider, guest, self.app.sign_up(OTHERS).data):
            assert claims_of(one)["user_role"] == "admin"
            assert self.app.user(one["access_token"]).status == 200
        methods = [one["authentication_method"] for one in self.events]
        assert methods == ["password", "token_refresh", "oauth", "anonymous", "password"]
        event = self.events[0]
        assert (event["user_id"], event["claims"]["email"]) == (session["user"]["id"], EMAIL)
        assert event["metadata"]["ip_address"] == "192.0.2.7"

    def test_a_refusal_or_a_failure_gives_no_session(self) -> None:
        self.app.begin_session()
        self.asks("custom_access_token", REFUSAL)
        assert code(self.app.again()) == (403, "hook_refused")
        for answer in (fails, {}, {"claims": {"sub": "another"}}):
            self.asks("custom_access_token", answer)
            assert code(self.app.again()) == (500, "hook_failed")

    def test_claims_fit_into_a_token(self) -> None:
        self.app.begin_session()
        self.asks("custom_access_token", lambda event: {"claims": {**event["claims"], "x": "y" * 10_000}})
        assert code(self.app.again()) == (500, "hook_failed")

    def test_after_a_refused_refresh_the_token_is_still_good(self) -> None:
        grown = {"refresh_token": self.app.begin_session()["refresh_token"]}
        self.asks("custom_access_token", fails)
        assert code(self.app.ask("POST", "/token?grant_type=refresh_token", grown)) == (500, "hook_failed")
        self.asks("custom_access_token", self.with_role)
        assert self.app.ask("POST", "/token?grant_type=refresh_token", grown).status == 200


class SendingMails(Hooked):
    def sent(self) -> Any:
        """What the hook has been asked to send since, after the response."""
        self.app.clock.advance(0)
        sent, self.events[:] = [*self.events], []
        return sent

    def verify(self, **body: Any) -> Any:
        return self.app.ask("POST", "/verify", body)

    def test_it_sends_in_place_of_the_mail_server(self) -> None:
        self.asks("send_email")
        assert (
            self.app.ask("POST", "/otp?redirect_to=https://app.example.test/welcome/", {"email": EMAIL}).body
            == {}
        )
        (event,) = self.sent()
        assert self.app.mails == []
        data = event["email_data"]
        assert (event["metadata"]["name"], event["user"]["email"]) == ("send-email", EMAIL)
        assert (data["email_action_type"], data["site_url"]) == ("magiclink", f"{API}/auth/v1")
        assert data["redirect_to"] == "https://app.example.test/welcome/"
        assert self.verify(type="email", email=EMAIL, token=data["token"]).status == 200
        self.app.ask("POST", "/recover", {"email": EMAIL})
        (event,) = self.sent()
        assert event["email_data"]["email_action_type"] == "recovery"
        assert self.verify(type="recovery", token_hash=event["email_data"]["token_hash"]).status == 200

    def test_without_a_mail_server_too(self) -> None:
        self.start(mail=False)
        self.events = []
        assert code(self.app.ask("POST", "/otp", {"email": EMAIL})) == (400, "email_provider_disabled")
        self.asks("send_email")
        assert self.app.ask("POST", "/otp", {"email": EMAIL}).status == 200
        assert len(self.sent()) == 1

    def test_a_change_of_address_has_two(self) -> None:
        self.asks("send_email")
        session = self.app.begin_session()
        self.app.operate("PUT", f"/{session['user']['id']}", {"email_confirm": True})
        self.app.ask("PUT", "/user", {"email": OTHERS}, session["access_token"])
        current, new = [one["email_data"] for one in self.sent()]
        assert {one["email_action_type"] for one in (current, new)} == {"email_change"}
        assert (current["old_email"], new["old_email"]) == (EMAIL, EMAIL)
        assert (current["token_hash"], new["token_hash_new"]) == ("", "")
        assert self.verify(type="email_change", email=EMAIL, token=current["token"]).body["code"] == "200"
        answer = self.verify(type="email_change", email=OTHERS, token=new["token_new"])
        assert answer.body["user"]["email"] == OTHERS

    def test_nobody_learns_from_it_who_is_a_user(self) -> None:
        """It is asked after the response, and tried again as the mail server is."""
        self.app.begin_session()
        self.asks("send_email", fails)
        for email in (EMAIL, "nobody@example.test"):
            body = {"email": email, "create_user": False}
            assert (self.app.ask("POST", "/otp", body).status, self.events) == (200, [])
            assert len(self.sent()) == (email == EMAIL)
        self.app.clock.advance(5)
        assert len(self.sent()) == 1
        self.asks("send_email", REFUSAL)
        self.app.clock.advance(60)
        assert len(self.sent()) == 1
        # A refusal is for good.
        self.app.clock.advance(3000)
        assert self.sent() == []


class ByAddress(Hooked):
    def test_an_address_is_asked_with_a_signature(self) -> None:
        requests: list[bytes] = []

        def answer(request: bytes, transport: Any) -> None:
            requests.append(request)
            transport.write(ok(orjson.dumps(REFUSAL), status="400 No"))

        self.app.internet.servers[URL] = answer
        self.set_hook("before_user_created", f"{URL}/hook")
        refused = self.app.ask("POST", "/signup", {"email": EMAIL, "password": PASSWORD})
        assert code(refused) == (403, "hook_refused")
        head, _, body = requests[0].partition(b"\r\n\r\n")
        sent = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        signed = f"{sent['webhook-id']}.{sent['webhook-timestamp']}.".encode() + body
        made = b64encode(hmac.digest(b"k" * 24, signed, "sha256")).decode()
        assert sent["webhook-signature"] == f"v1,{made}"
        assert PASSWORD.encode() not in body
        # It is away.
        del self.app.internet.servers[URL]
        refused = self.app.ask("POST", "/signup", {"email": EMAIL, "password": PASSWORD})
        assert code(refused) == (500, "hook_failed")
        self.app.reload(hooks=Hooks())
        assert self.app.begin_session()["access_token"]
