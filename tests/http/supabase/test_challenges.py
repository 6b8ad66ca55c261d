"""Codes and links by e-mail at ``/auth/v1``: signing in, recovering, inviting, new addresses; where links lead."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
import orjson

from project_service.auth.assemble import clean
from project_service.errors import database_unavailable
from project_service.lifecycle import start
from tests.fakes.auth import in_place_of_sql
from tests.fakes.common import SERVICE_KEY, Response, parse_response, raw_request
from tests.http.auth.app import NOW, PASSWORD, Answer
from tests.http.supabase.app import EMAIL, ClientApp, code_of, link_of, token_of
from tests.http.supabase.test_auth import OTHER, OTHERS, Base, code

SITE, CALLBACK = "https://app.example.test/", "https://app.example.test/welcome/?a=b"
ASKED = orjson.dumps({"email": EMAIL})
VERIFIER = "v" * 56
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
# Addresses that are not allowed, or nearly allowed.
HOSTILE = (
    "https://evil.test/",
    "https://app.example.test.evil.test/welcome/",
    "https://app.example.test@evil.test/welcome/",
    "https://app.example.test/welcome/../x",
    "https://app.example.test/welcome/%2e%2e/x",
    "https://app.example.test\\@evil.test/welcome/",
    "//evil.test/welcome/",
    "javascript:alert(1)//https://app.example.test/welcome/",
    "data:text/html,x",
    "http://app.example.test/welcome/",
    "https://app.example.test:8443/welcome/",
    "https://\u0430pp.example.test/welcome/",
    "https://xn--pp-6kc.example.test/welcome/",
    "https://app.example.test/welcome/\r\nX: y",
    "",
)
PKCE = {"code_challenge": CHALLENGE, "code_challenge_method": "s256"}


def claims_of(session: Any) -> Any:
    return jwt.decode(session["access_token"], options={"verify_signature": False})


class Challenging(Base):
    def setUp(self) -> None:
        self.app = ClientApp(self, site_url=SITE, redirect_urls=("https://app.example.test/welcome/",))

    def post(self, path: str, **body: Any) -> Answer:
        return self.app.ask("POST", path, body)

    def mailed(self, path: str, email: str = EMAIL, **body: Any) -> Any:
        """The mail of which ``path`` sends one."""
        before = len(self.app.mails)
        assert self.post(path, email=email, **body).status == 200
        (mail,) = self.app.mails[before:]
        return mail

    def verify(self, kind: str, token: str, email: str = EMAIL) -> Answer:
        return self.post("/verify", type=kind, email=email, token=token)

    def follow(self, link: str) -> Response:
        """What a browser gets that opens ``link`` and presses the button."""
        address = urlsplit(link)
        page = self.app.app.connect("192.0.2.7").request("GET", f"{address.path}?{address.query}", {}, None)
        assert page.status == 200, page.body
        fields = {name: value for name, value in parse_qsl(address.query) if name != "redirect_to"}
        for name, value in fields.items():
            assert f'name="{name}" value="{value}"'.encode() in page.body
        return self.post_form(fields)

    def post_form(self, fields: Any, **more: str) -> Response:
        headers = {"Content-Type": "application/x-www-form-urlencoded", **more}
        client = self.app.app.connect("192.0.2.7")
        return client.request("POST", "/auth/v1/verify", headers, urlencode(fields).encode())

    def landed(self, answer: Response) -> tuple[str, Any]:
        """Where a redirect leads, and the parameters of its fragment."""
        assert answer.status == 303
        assert answer.header("cache-control") == "no-store"
        assert answer.header("referrer-policy") == "no-referrer"
        address, _, fragment = str(answer.header("location")).partition("#")
        return address, dict(parse_qsl(fragment))


class ByCode(Challenging):
    def test_a_code_signs_in_whoever_it_was_sent_to(self) -> None:
        user = self.app.begin_session()["user"]
        code_ = code_of(self.mailed("/otp"))
        session = self.verify("email", f" {code_} ").body
        assert session["user"]["id"] == user["id"]
        assert session["user"]["identities"][0]["identity_data"]["email_verified"] is True
        assert claims_of(session)["amr"] == [{"method": "otp", "timestamp": int(NOW)}]
        assert code(self.verify("email", code_)) == (403, "otp_expired")

    def test_a_new_user_is_made_unless_that_is_switched_off(self) -> None:
        mail = self.mailed("/otp", data={"name": "Ada"})
        session = self.verify("magiclink", code_of(mail)).body
        assert session["user"]["user_metadata"] == {"name": "Ada"}
        # Nobody can log in with an empty password.
        assert code(self.app.again(password="")) == (400, "invalid_credentials")
        before = len(self.app.repository.accounts)
        for more in ({"create_user": False}, {}):
            if not more:
                self.app.reload(allow_signup=False)
            assert self.post("/otp", email=OTHERS, **more).body == {}
        assert len(self.app.repository.accounts) == before
        assert len(self.app.mails) == 1

    def test_where_addresses_are_confirmed_the_first_code_confirms(self) -> None:
        self.app.reload(confirm_email=True)
        mail = self.mailed("/otp")
        assert "type=signup" in link_of(mail)
        assert self.verify("email", code_of(mail)).status == 200
        self.app.clock.advance(60)
        assert "type=magiclink" in link_of(self.mailed("/otp"))

    def test_a_code_is_for_its_type_address_and_time(self) -> None:
        self.app.begin_session()
        self.app.begin_session(OTHERS)
        mail = self.mailed("/recover")
        for kind, email in (("email", EMAIL), ("signup", EMAIL), ("invite", EMAIL), ("recovery", OTHERS)):
            assert code(self.verify(kind, code_of(mail), email)) == (403, "otp_expired")
        self.app.clock.advance(3600)
        assert code(self.verify("recovery", code_of(mail))) == (403, "otp_expired")

    def test_five_wrong_codes_end_it_and_keep_the_link(self) -> None:
        self.app.begin_session()
        mail = self.mailed("/otp")
        right = code_of(mail)
        wrong = f"{(int(right) + 1) % 10**6:06}"
        for _ in range(5):
            assert code(self.verify("email", wrong)) == (403, "otp_expired")
        assert code(self.verify("email", right)) == (403, "otp_expired")
        assert self.post("/verify", type="magiclink", token_hash=token_of(mail)).status == 200

    def test_what_is_no_code_is_no_try(self) -> None:
        self.app.begin_session()
        mail = self.mailed("/otp")
        for text in ("", "12345", "1234567", "\uff11" * 6, "abcdef", "\0" * 6):
            assert self.verify("email", text).status in (400, 403)
        assert self.verify("email", code_of(mail)).status == 200

    def test_a_newer_code_replaces_the_one_before_but_not_within_a_minute(self) -> None:
        self.app.begin_session()
        first = self.mailed("/otp")
        assert self.post("/otp", email=EMAIL).body == {}
        assert len(self.app.mails) == 1
        self.app.clock.advance(60)
        second = self.mailed("/otp")
        assert code(self.post("/verify", type="magiclink", token_hash=token_of(first)))[0] == 403
        assert self.verify("email", code_of(second)).status == 200

    def test_an_address_is_confirmed_by_token_or_code(self) -> None:
        self.app.reload(confirm_email=True)
        for email, by_code in ((EMAIL, True), (OTHERS, False)):
            before = len(self.app.mails)
            self.app.begin_session(email)
            (mail,) = self.app.mails[before:]
            if by_code:
                session = self.verify("signup", code_of(mail), email).body
            else:
                session = self.post("/verify", type="signup", token_hash=token_of(mail)).body
            assert session["user"]["email_confirmed_at"] == session["user"]["confirmed_at"]
            assert claims_of(session)["amr"][0]["method"] == "otp"
            assert self.app.again(email).status == 200

    def test_a_taken_address_is_told_its_owner(self) -> None:
        self.app.reload(confirm_email=True)
        self.app.begin_session()
        self.verify("signup", code_of(self.app.mails[0]))
        self.app.begin_session()
        assert self.app.mails[1].subject == "You have an account already"
        assert SITE in self.app.mails[1].text and len(self.app.mails) == 2

    def test_answers_are_limited_by_address(self) -> None:
        self.app.reload(verifications_max_per_address=1)
        self.app.begin_session()
        mail = self.mailed("/otp")
        assert code(self.verify("email", "000000"))[0] == 403
        assert code(self.verify("email", code_of(mail))) == (429, "over_request_rate_limit")

    def test_bodies_that_say_nothing(self) -> None:
        for body in (
            {},
            {"type": "email"},
            {"type": "email", "email": EMAIL},
            {"type": "x", "token_hash": "y"},
        ):
            assert code(self.post("/verify", **body)) == (400, "validation_failed"), body

    def test_no_phone_was_sent_a_code(self) -> None:
        for phone in ("1", "+15551234567"):
            assert code(self.post("/verify", type="sms", phone=phone, token="123456")) == (403, "otp_expired")
        for phone in ("15551234567-x", "05551234567", "1" * 16, "+"):
            answer = self.post("/verify", type="sms", phone=phone, token="123456")
            assert code(answer) == (400, "validation_failed"), phone
            assert answer.body["message"] == "Invalid phone number format (E.164 required)"


class SigningUpBeforeTheOwner(Challenging):
    """Pre-hijacking: somebody signs up with the address of somebody else, and waits for its owner."""

    def setUp(self) -> None:
        super().setUp()
        self.app.reload(confirm_email=True)
        self.app.begin_session(EMAIL, PASSWORD)
        self.app.clock.advance(60)

    def test_a_code_for_the_owner_voids_the_password(self) -> None:
        assert self.verify("email", code_of(self.mailed("/otp"))).status == 200
        assert code(self.app.again()) == (400, "invalid_credentials")

    def test_also_if_the_other_has_mails_sent_again_and_again(self) -> None:
        for path, body in (("/resend", {"type": "signup"}), ("/otp", {}), ("/resend", {"type": "signup"})):
            self.post(path, email=EMAIL, **body)
            self.app.clock.advance(1)
        assert self.verify("email", code_of(self.app.mails[-1])).status == 200
        assert code(self.app.again()) == (400, "invalid_credentials")

    def test_of_two_passwords_neither_is_taken(self) -> None:
        self.app.begin_session(EMAIL, OTHER)
        assert self.verify("signup", code_of(self.app.mails[-1])).status == 200
        assert [self.app.again(EMAIL, one).status for one in (PASSWORD, OTHER)] == [400, 400]

    def test_whoever_signs_up_twice_keeps_the_password(self) -> None:
        self.app.begin_session(EMAIL, PASSWORD)
        assert self.verify("signup", code_of(self.app.mails[-1])).status == 200
        assert self.app.again().status == 200

    def test_it_takes_one_hash_whether_or_not_there_is_a_user(self) -> None:
        for email in (EMAIL, OTHERS):
            before = self.app.hashes.work
            self.app.begin_session(email, OTHER)
            assert self.app.hashes.work == before + 1
        last = [(one.action, one.result) for one in self.app.repository.events if one.email == EMAIL]
        assert last[-2:] == [("signup", "email_taken"), ("mail_confirmation", "ok")]

    def test_the_mails_are_limited(self) -> None:
        self.app.reload(confirm_email=True, emails_max_per_account=1)
        for email, status in ((EMAIL, 429), (OTHERS, 200), (OTHERS, 429)):
            assert self.post("/signup", email=email, password=PASSWORD).status == status


class Recovering(Challenging):
    def test_it_signs_in_and_a_new_password_needs_no_old_one(self) -> None:
        old = self.app.begin_session()
        session = self.verify("recovery", code_of(self.mailed("/recover"))).body
        assert claims_of(session)["amr"][0]["method"] == "recovery"
        assert self.app.ask("PUT", "/user", {"password": OTHER}, session["access_token"]).status == 200
        assert code(self.app.ask("GET", "/user", token=old["access_token"])) == (403, "session_not_found")
        assert (self.app.again().status, self.app.again(password=OTHER).status) == (400, 200)

    def test_the_own_page_takes_the_token_too(self) -> None:
        self.app.begin_session()
        token = token_of(self.mailed("/recover"))
        assert self.app.call("POST", "/auth/reset", {"token": token, "password": OTHER}).status == 200
        assert code(self.post("/verify", type="recovery", token_hash=token)) == (403, "otp_expired")

    def test_disabled_users_stay_out(self) -> None:
        user = self.app.begin_session()["user"]
        mail = self.mailed("/recover")
        self.app.operate("PUT", f"/{user['id']}", {"ban_duration": "1h"})
        assert code(self.verify("recovery", code_of(mail))) == (403, "otp_expired")


class Links(Challenging):
    def test_a_link_leads_to_the_application_with_a_session(self) -> None:
        user = self.app.begin_session()["user"]
        for path, kind in (("/otp", "magiclink"), ("/recover", "recovery")):
            link = link_of(self.mailed(f"{path}?{urlencode({'redirect_to': CALLBACK})}"))
            address, session = self.landed(self.follow(link))
            assert address == CALLBACK
            assert (session["type"], session["token_type"]) == (kind, "bearer")
            assert session["expires_at"] == str(int(NOW) + 3600) and session["expires_in"] == "3600"
            assert self.app.ask("GET", "/user", token=session["access_token"]).body["id"] == user["id"]
            grown = {"refresh_token": session["refresh_token"]}
            assert self.app.ask("POST", "/token?grant_type=refresh_token", grown).status == 200

    def test_opening_uses_nothing_up(self) -> None:
        self.app.begin_session()
        address = urlsplit(link_of(self.mailed("/otp")))
        for method in ("GET", "HEAD", "GET"):
            answer = self.app.app.connect().request(method, f"{address.path}?{address.query}", {}, None)
            assert answer.status == 200
            assert answer.header("content-type") == "text/html; charset=utf-8"
            assert answer.header("referrer-policy") == "no-referrer"
            assert answer.header("x-frame-options") == "DENY"
            policy = str(answer.header("content-security-policy"))
            assert "form-action 'self' https://app.example.test;" in policy
            assert "script" not in policy and "default-src 'none'" in policy
            # It posts to itself: a path of the service's own would be another behind a proxy that adds one.
            assert method == "HEAD" or b'<form method="post"><' in answer.body
        assert self.follow(f"https://api.example.test{address.path}?{address.query}").status == 303

    def test_a_form_on_another_site_signs_nobody_in(self) -> None:
        """Its visitors would be signed in as somebody else, and store there what is theirs."""
        self.app.begin_session()
        fields = {"type": "magiclink", "token": token_of(self.mailed("/otp"))}
        for site in ("cross-site", "same-site"):
            answer = self.post_form(fields, **{"Sec-Fetch-Site": site})
            assert (answer.status, fields["token"].encode() in answer.body) == (200, True)
        assert self.landed(self.post_form(fields, **{"Sec-Fetch-Site": "same-origin"}))[1]["access_token"]

    def test_unless_the_operator_wants_it(self) -> None:
        self.app.reload(verify_by_get=True)
        self.app.begin_session()
        address = urlsplit(link_of(self.mailed("/otp")))
        target = f"{address.path}?{address.query}"
        assert self.app.app.connect().request("HEAD", target, {}, None).status == 200
        answer = self.app.app.connect().request("GET", target, {}, None)
        assert self.landed(answer)[1]["access_token"]

    def test_a_link_that_is_not_valid_leads_back_with_the_reason(self) -> None:
        self.app.begin_session()
        link = urlsplit(link_of(self.mailed(f"/otp?{urlencode({'redirect_to': CALLBACK})}")))
        self.app.clock.advance(3600)
        answer = self.app.app.connect().request("GET", f"{link.path}?{link.query}", {}, None)
        address, told = self.landed(answer)
        assert (address, told["error"], told["error_code"]) == (CALLBACK, "access_denied", "otp_expired")
        answer = self.post_form({"type": "magiclink", "token": "x" * 43})
        assert self.landed(answer)[0] == SITE
        answer = self.post_form({"type": "magiclink"})
        assert self.landed(answer)[1]["error_code"] == "otp_expired"

    def test_a_link_is_not_called_invalid_while_nobody_can_look_it_up(self) -> None:
        async def unavailable(*given: Any, **more: Any) -> Any:
            raise database_unavailable()

        self.app.begin_session()
        mail = self.mailed("/otp")
        link = urlsplit(link_of(mail))
        fields = {"type": "magiclink", "token": token_of(mail)}
        with patch.object(type(self.app.repository), "pending", unavailable):
            opened = self.app.app.connect().request("GET", f"{link.path}?{link.query}", {}, None)
            for answer in (opened, self.post_form(fields)):
                assert (answer.status, answer.header("retry-after")) == (503, "2")
        assert "access_token" in self.landed(self.post_form(fields))[1]

    def test_without_an_application_a_page_says_that_it_is_done(self) -> None:
        self.app = ClientApp(self, confirm_email=True)
        self.app.begin_session()
        answer = self.follow(link_of(self.app.mails[0]))
        assert (answer.status, b"Done" in answer.body) == (200, True)
        assert self.app.repository.session_rows == {}
        assert self.app.again().status == 200
        assert self.post_form({"type": "signup", "token": "x" * 43}).status == 410

    def test_where_it_leads_is_decided_when_it_is_asked_for(self) -> None:
        """The parameter of the link alone leads nowhere: anybody could have written it."""
        self.app.begin_session()
        for wrong in HOSTILE:
            self.app.clock.advance(60)
            link = link_of(self.mailed(f"/otp?{urlencode({'redirect_to': wrong})}"))
            assert parse_qs(urlsplit(link).query)["redirect_to"] == [SITE], wrong
            elsewhere = link.replace(urlencode({"redirect_to": SITE}), urlencode({"redirect_to": wrong}))
            assert self.landed(self.follow(elsewhere))[0] == SITE
            broken = self.app.app.connect().request(
                "GET",
                f"/auth/v1/verify?{urlencode({'type': 'signup', 'token': 'x', 'redirect_to': wrong})}",
                {},
                None,
            )
            assert self.landed(broken)[0] == SITE
        for right in ("HTTPS://APP.example.test/welcome/x?y=z", CALLBACK, SITE):
            self.app.clock.advance(60)
            link = link_of(self.mailed(f"/otp?{urlencode({'redirect_to': right})}"))
            address = self.landed(self.follow(link))[0]
            assert address.lower() == right.lower()

    def test_mails_link_to_no_host_that_a_stranger_names(self) -> None:
        self.app = ClientApp(self, public_url=None)
        self.app.begin_session()
        for host, linked in (("evil.test", False), ("localhost:8080", True), ("127.0.0.1:8080", True)):
            self.app.clock.advance(60)
            before = len(self.app.mails)
            raw = raw_request("POST", "/auth/v1/recover", {"Content-Type": "application/json"}, ASKED)
            client = self.app.app.connect()
            client.send(raw.replace(b"Host: api.example.test", f"Host: {host}".encode()))
            assert parse_response(client.received()).status == 200
            text = self.app.mails[before:][0].text
            assert ("http://" in text) is linked, host
            assert host in text if linked else "evil" not in text

    def test_the_page_needs_no_key(self) -> None:
        self.app = ClientApp(self, require_project_key=True, site_url=SITE)
        self.app.begin_session()
        assert self.follow(link_of(self.mailed("/otp"))).status == 303


class WithPkce(Challenging):
    def test_the_client_that_asked_exchanges_a_code_for_the_session(self) -> None:
        self.app.begin_session()
        link = link_of(self.mailed("/recover", **PKCE))
        address, fragment = self.landed(self.follow(link))
        auth_code = parse_qs(urlsplit(address).query)["code"][0]
        assert address.startswith(SITE) and fragment == {}
        path = "/token?grant_type=pkce"
        wrong = self.app.ask("POST", path, {"auth_code": auth_code, "code_verifier": "w" * 56})
        assert code(wrong) == (400, "bad_code_verifier")
        session = self.app.ask("POST", path, {"auth_code": auth_code, "code_verifier": VERIFIER}).body
        assert claims_of(session)["amr"][0]["method"] == "recovery"
        again = self.app.ask("POST", path, {"auth_code": auth_code, "code_verifier": VERIFIER})
        assert code(again) == (404, "flow_state_not_found")

    def test_the_code_lives_for_minutes(self) -> None:
        self.app.begin_session()
        address, _ = self.landed(self.follow(link_of(self.mailed("/otp", **PKCE))))
        self.app.clock.advance(300)
        body = {"auth_code": parse_qs(urlsplit(address).query)["code"][0], "code_verifier": VERIFIER}
        assert code(self.app.ask("POST", "/token?grant_type=pkce", body)) == (404, "flow_state_not_found")

    def test_whoever_types_the_code_in_is_the_client(self) -> None:
        self.app.begin_session()
        assert self.verify("email", code_of(self.mailed("/otp", **PKCE))).body["access_token"]

    def test_a_plain_challenge(self) -> None:
        self.app.begin_session()
        link = link_of(self.mailed("/otp", code_challenge=VERIFIER))
        address, _ = self.landed(self.follow(link))
        body = {"auth_code": parse_qs(urlsplit(address).query)["code"][0], "code_verifier": VERIFIER}
        assert self.app.ask("POST", "/token?grant_type=pkce", body).status == 200


class ChangingTheAddress(Challenging):
    def setUp(self) -> None:
        super().setUp()
        self.app.reload(double_confirm_changes=False)
        self.session = self.app.begin_session()
        self.token = self.session["access_token"]

    def change(self, email: str = OTHERS) -> Any:
        answer = self.app.ask("PUT", "/user", {"email": email}, self.token)
        assert answer.status == 200, answer.body
        return answer.body

    def test_one_address_is_enough_if_the_operator_says_so(self) -> None:
        user = self.change()
        assert (user["email"], user["new_email"]) == (EMAIL, OTHERS)
        assert user["email_change_sent_at"]
        (mail,) = self.app.mails
        assert mail.recipient == OTHERS
        session = self.verify("email_change", code_of(mail), OTHERS).body
        assert session["user"]["email"] == session["user"]["identities"][0]["email"] == OTHERS
        assert "new_email" not in session["user"]
        assert (self.app.again().status, self.app.again(OTHERS).status) == (400, 200)

    def test_both_addresses_confirm(self) -> None:
        self.app.reload(double_confirm_changes=True)
        self.change()
        current, new = self.app.mails
        assert (current.recipient, new.recipient) == (EMAIL, OTHERS)
        half = self.verify("email_change", code_of(new), OTHERS)
        assert (half.status, half.body["code"]) == (200, "200")
        assert self.app.again().status == 200
        address, session = self.landed(self.follow(link_of(current)))
        assert address == SITE
        assert self.app.ask("GET", "/user", token=session["access_token"]).body["email"] == OTHERS

    def test_half_a_change_by_link_says_so(self) -> None:
        self.app.reload(double_confirm_changes=True)
        self.change()
        _, told = self.landed(self.follow(link_of(self.app.mails[-1])))
        assert "other email" in told["message"] and "access_token" not in told

    def test_it_is_mailed_again(self) -> None:
        self.change()
        self.app.clock.advance(60)
        self.post("/resend", type="email_change", email=OTHERS)
        first, second = self.app.mails
        assert second.recipient == OTHERS and code_of(second) != code_of(first)
        assert self.verify("email_change", code_of(second), OTHERS).body["user"]["email"] == OTHERS
        nobody = "nobody@example.test"
        assert self.post("/resend", type="email_change", email=nobody).body == {}
        assert len(self.app.mails) == 2
        # It is recorded, so that it takes the time of a commit too.
        assert self.app.repository.events[-1].email == nobody

    def test_how_often_somebody_can_ask_which_addresses_are_taken_is_limited(self) -> None:
        self.app.reload(emails_max_per_address=2)
        for _ in range(2):
            answer = self.app.ask("PUT", "/user", {"email": OTHERS}, self.token)
            assert answer.status == 200
        self.app.begin_session("third@example.test")
        for email in ("third@example.test", "fourth@example.test"):
            answer = self.app.ask("PUT", "/user", {"email": email}, self.token)
            assert code(answer) == (429, "over_request_rate_limit")

    def test_a_new_password_ends_the_change_of_another_session(self) -> None:
        self.change()
        assert self.app.ask("PUT", "/user", {"password": OTHER}, self.token).status == 200
        (mail,) = self.app.mails
        assert code(self.verify("email_change", code_of(mail), OTHERS)) == (403, "otp_expired")

    def test_a_new_password_and_address_at_once(self) -> None:
        assert self.app.ask("PUT", "/user", {"email": OTHERS, "password": OTHER}, self.token).status == 200
        (mail,) = self.app.mails
        assert self.verify("email_change", code_of(mail), OTHERS).status == 200
        assert self.app.again(OTHERS, OTHER).status == 200

    def test_somebody_else_may_take_it_first(self) -> None:
        self.change()
        (mail,) = self.app.mails
        self.app.begin_session(OTHERS)
        assert self.verify("email_change", code_of(mail), OTHERS).status == 422
        assert self.app.again().status == 200

    def test_a_nonce_lets_a_password_be_set(self) -> None:
        self.app.clock.advance(24 * 3600 + 1)
        grown = {"refresh_token": self.session["refresh_token"]}
        token = self.app.ask("POST", "/token?grant_type=refresh_token", grown).body["access_token"]
        assert self.app.ask("GET", "/reauthenticate", token=token).body == {}
        (mail,) = self.app.mails
        body = {"password": OTHER}
        assert code(self.app.ask("PUT", "/user", body, token)) == (400, "reauthentication_needed")
        wrong = {**body, "nonce": f"{(int(code_of(mail)) + 1) % 10**6:06}"}
        assert code(self.app.ask("PUT", "/user", wrong, token)) == (422, "reauthentication_not_valid")
        right = {**body, "nonce": code_of(mail)}
        # Nobody signs in by it.
        assert code(self.verify("email", code_of(mail)))[0] == 403
        assert self.app.ask("PUT", "/user", right, token).status == 200
        assert self.app.again(password=OTHER).status == 200


class Anonymous(Challenging):
    def setUp(self) -> None:
        super().setUp()
        self.app.reload(anonymous_users=True)

    def begin(self) -> Any:
        answer = self.post("/signup", data={"theme": "dark"})
        assert answer.status == 200, answer.body
        return answer.body

    def test_is_a_user_without_an_address(self) -> None:
        session = self.begin()
        user = session["user"]
        assert (user["email"], user["is_anonymous"], user["identities"]) == ("", True, [])
        assert user["user_metadata"] == {"theme": "dark"}
        assert user["app_metadata"] == {} and "email_confirmed_at" not in user
        claims = claims_of(session)
        assert (claims["is_anonymous"], claims["amr"][0]["method"]) == (True, "anonymous")
        assert self.app.user(session["access_token"]).data["user"]["email"] == ""
        assert self.begin()["user"]["id"] != user["id"]

    def test_gets_no_code_to_set_a_password_with(self) -> None:
        answer = self.app.ask("GET", "/reauthenticate", token=self.begin()["access_token"])
        assert code(answer) == (400, "validation_failed")
        words = "Reauthentication requires the user to have an email or a phone number"
        assert answer.body["message"] == words and self.app.mails == []

    def test_gets_an_address_and_a_password_at_once_where_nobody_confirms(self) -> None:
        session = self.begin()
        body = {"email": EMAIL, "password": PASSWORD}
        user = self.app.ask("PUT", "/user", body, session["access_token"]).body
        assert (user["id"], user["email"], user["is_anonymous"]) == (session["user"]["id"], EMAIL, False)
        assert self.app.again().body["user"]["id"] == user["id"]

    def test_otherwise_when_it_is_confirmed(self) -> None:
        self.app.reload(confirm_email=True)
        session = self.begin()
        user = self.app.ask("PUT", "/user", {"email": EMAIL}, session["access_token"]).body
        assert (user["new_email"], user["is_anonymous"]) == (EMAIL, True)
        (mail,) = self.app.mails
        user = self.verify("email_change", code_of(mail)).body["user"]
        assert (user["id"], user["email"], user["is_anonymous"]) == (session["user"]["id"], EMAIL, False)

    def test_are_limited_by_address(self) -> None:
        self.app.reload(anonymous_users=True, anonymous_max_per_address=1)
        self.begin()
        assert code(self.post("/signup", data={})) == (429, "over_request_rate_limit")

    def test_are_deleted_when_they_have_had_no_session_for_long(self) -> None:
        self.app.reload(anonymous_users=True, anonymous_days=10)
        self.begin()
        used, theirs = self.begin(), self.begin()["user"]["id"]
        self.app.begin_session(OTHERS)
        self.app.repository.in_use.add(theirs)
        context, repository = self.app.auth.context, in_place_of_sql(self.app.repository)
        for days, left in ((9, 4), (2, 3)):
            self.app.clock.advance(days * 24 * 3600)
            used = self.app.ask(
                "POST", "/token?grant_type=refresh_token", {"refresh_token": used["refresh_token"]}
            ).body
            self.successResultOf(start(clean(repository, context)))
            assert len(self.app.repository.accounts) == left
        assert {used["user"]["id"], theirs} < set(self.app.repository.accounts)

    def test_the_settings_say_so(self) -> None:
        assert self.app.call("GET", "/auth/v1/settings").body["external"]["anonymous_users"] is True


class FromOperators(Challenging):
    def operate(self, path: str, **body: Any) -> Answer:
        return self.app.ask("POST", path, body, SERVICE_KEY, SERVICE_KEY)

    def test_an_invitation_makes_a_user_who_accepts_it(self) -> None:
        path = f"/invite?{urlencode({'redirect_to': CALLBACK})}"
        user = self.operate(path, email=EMAIL, data={"team": 1}).body
        assert user["invited_at"] and user["user_metadata"] == {"team": 1}
        (mail,) = self.app.mails
        assert mail.subject == "You are invited"
        address, session = self.landed(self.follow(link_of(mail)))
        assert (address, session["type"]) == (CALLBACK, "invite")
        assert claims_of(session)["amr"][0]["method"] == "invite"
        assert code(self.operate("/invite", email=EMAIL)) == (422, "email_exists")

    def test_links_that_nobody_is_mailed(self) -> None:
        known = self.app.begin_session()["user"]["id"]
        for kind, email, more in (
            ("signup", "a@example.test", {"password": PASSWORD}),
            ("invite", "b@example.test", {"data": {"x": 1}}),
            ("magiclink", "c@example.test", {}),
            ("magiclink", EMAIL, {}),
            ("recovery", EMAIL, {}),
        ):
            made = self.operate("/admin/generate_link", type=kind, email=email, **more).body
            assert (made["verification_type"], made["redirect_to"]) == (kind, SITE)
            assert made["email"] == email and (made["id"] == known) is (email == EMAIL)
            assert made["hashed_token"] in made["action_link"]
            answer = self.verify(kind, made["email_otp"], email)
            assert answer.status == 200, (kind, email, answer.body)
            assert answer.body["user"]["id"] == made["id"]
        self.app.ask("PUT", "/user", {"password": PASSWORD}, answer.body["access_token"])
        changes = [("email_change_new", OTHERS), ("email_change_current", EMAIL)]
        codes = [
            self.operate("/admin/generate_link", type=kind, email=EMAIL, new_email=OTHERS).body["email_otp"]
            for kind, _ in changes
        ]
        for (_, sent_to), one in zip(changes, codes, strict=True):
            assert self.verify("email_change", one, sent_to).status == 200
        assert self.app.mails == []
        assert self.app.again(OTHERS).body["user"]["id"] == known

    def test_refusals(self) -> None:
        self.app.begin_session()
        for body, status, why in (
            ({}, 400, "validation_failed"),
            ({"type": "recovery", "email": OTHERS}, 404, "user_not_found"),
            ({"type": "signup", "email": OTHERS}, 400, "validation_failed"),
            ({"type": "signup", "email": EMAIL, "password": PASSWORD}, 422, "email_exists"),
            ({"type": "x", "email": EMAIL}, 400, "validation_failed"),
            ({"type": "email_change_new", "email": EMAIL, "new_email": EMAIL}, 422, "email_exists"),
        ):
            assert code(self.operate("/admin/generate_link", **body)) == (status, why), body
        assert code(self.operate("/invite")) == (400, "validation_failed")
