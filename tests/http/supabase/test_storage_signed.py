"""``/storage/v1/object/sign`` and ``upload/sign``: what an address opens, for how long, and that it opens nothing
else."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import jwt
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.auth.tokens import ALGORITHMS, KeySet, rotated
from project_service.errors import ApiError
from project_service.supabase.storage.signatures import Signatures, Signed
from tests.captured_log import logged_until_the_end
from tests.fakes.common import ANON_KEY, Response
from tests.http.storage.app import ALICE, BOB, FORM, form, part
from tests.http.supabase.storage_app import ANON, OTHER, SERVICE, USER, V1, told
from tests.http.supabase.test_storage_objects import BAD_KEY, DENIED, EXISTS, MISSING, Case, everything

INVALID = (400, "400", "InvalidRequest")
BAD_TOKEN = (400, "400", "InvalidSignature")
EXPIRED = (400, "400", "ExpiredToken")


class Signing(Case):
    def setUp(self) -> None:
        super().setUp()
        self.put(f"policed/{ALICE}/a.txt", b"0123456789", USER)
        self.path = f"policed/{ALICE}/a.txt"

    def sign(self, path: str = "", seconds: Any = 3600, headers: dict[str, str] = USER, **body: Any) -> str:
        signed = self.app.value(
            "POST", f"/object/sign/{path or self.path}", {"expiresIn": seconds, **body}, headers
        )
        self.assertEqual([*signed], ["signedURL"])
        address: str = signed["signedURL"]
        return address

    def open(self, address: str, method: str = "GET", **headers: str) -> Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.app.request(method, V1 + quote(address, safe="/?=&.-_%"), sent)


class Downloads(Signing):
    def test_an_address_opens_the_object_until_it_expires(self) -> None:
        address = self.sign(seconds=50)
        self.assertTrue(address.startswith(f"/object/sign/{self.path}?token="))
        for _ in range(3):
            response = self.open(address)
            self.assertEqual((response.status, response.body), (200, b"0123456789"))
        self.assertEqual(response.header("cache-control"), "private, max-age=50")
        self.assertEqual(response.header("referrer-policy"), "no-referrer")
        self.app.clock.advance(20)
        self.assertEqual(self.open(address).header("cache-control"), "private, max-age=30")
        part = self.open(address, Range="bytes=2-4")
        self.assertEqual((part.status, part.body), (206, b"234"))
        self.assertEqual(self.open(address, "HEAD").header("content-length"), "10")
        self.app.clock.advance(30)
        for method in ("GET", "HEAD"):
            self.assertEqual(self.open(address, method).status, 400)
        self.assertEqual(told(self.open(address)), EXPIRED)

    def test_it_looks_at_no_key_and_no_token_of_a_user(self) -> None:
        address = self.sign()
        for headers in (
            {"apikey": "wrong"},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Bearer {ANON_KEY}"},
        ):
            self.assertEqual(self.open(address, **headers).status, 200)
        self.assertEqual(self.open(f"{address}&apikey=1&apikey=2&cacheNonce=5").status, 200)

    def test_names_to_save_it_under(self) -> None:
        address = self.sign()
        for query, shown in (
            ("&download=", "attachment; filename=a.txt;"),
            ("&download=b.txt", "filename=b.txt;"),
        ):
            self.assertIn(shown, self.open(address + query).header("content-disposition") or "")

    def test_asked_for_again_soon_it_is_the_same(self) -> None:
        self.app.clock.advance(1)  # it is not the moment when they change
        first = self.sign(seconds=36000)
        self.app.clock.advance(60)
        self.assertEqual(self.sign(seconds=36000), first)
        seen = set()
        for _ in range(19):
            self.app.clock.advance(1800)
            seen.add(self.sign(seconds=36000))
        # Ten of them in the time that one lives.
        self.assertEqual(len(seen), 10)

    def test_what_may_not_be_seen_is_not_signed(self) -> None:
        for headers in (OTHER, ANON):
            for path in (self.path, f"policed/{BOB}/none"):
                refused = self.app.ask("POST", f"/object/sign/{path}", {"expiresIn": 60}, headers)
                self.assertEqual(told(refused), MISSING)
        for body in ({}, {"expiresIn": 0}, {"expiresIn": "soon"}, {"expiresIn": 10**10}, {"expiresIn": 1.5}):
            self.assertEqual(told(self.app.ask("POST", f"/object/sign/{self.path}", body, USER)), INVALID)
        self.sign(seconds="60")
        self.assertEqual(
            told(self.app.ask("POST", "/object/sign/policed/../x", {"expiresIn": 60}, USER)), BAD_KEY
        )
        self.assertEqual(told(self.app.ask("POST", "/object/sign/shut/x", {"expiresIn": 60}, ANON)), DENIED)

    def test_several(self) -> None:
        self.put(f"policed/{ALICE}/b%20%C3%A9.txt", b"other", USER)
        paths = [f"{ALICE}/a.txt", f"{BOB}/none", f"{ALICE}/b é.txt", f"{ALICE}/a.txt", "../x", "\0"]
        signed = self.app.value("POST", "/object/sign/policed", {"expiresIn": 60, "paths": paths}, USER)
        missing = "Either the object does not exist or you do not have access to it"
        self.assertEqual([one["path"] for one in signed], paths)
        self.assertEqual(
            [one["error"] for one in signed],
            [None, missing, None, None, missing, missing],
        )
        self.assertEqual(self.open(signed[2]["signedURL"]).body, b"other")
        self.assertIsNone(signed[1]["signedURL"])
        seen = self.app.value("POST", "/object/sign/policed", {"expiresIn": 60, "paths": paths}, OTHER)
        self.assertEqual({one["signedURL"] for one in seen}, {None})

    def test_it_opens_what_the_key_has_by_then(self) -> None:
        address = self.sign()
        self.put(self.path, b"new", USER)
        self.assertEqual(self.open(address).body, b"new")
        self.app.value("DELETE", f"/object/{self.path}", headers=USER)
        self.assertEqual(told(self.open(address)), MISSING)

    def test_where_only_owners_read_it_opens_nothing_of_others(self) -> None:
        self.app.rules("shut", owner_only_reads=True)
        self.put("shut/k", b"mine", USER)
        address, by_service = self.sign("shut/k"), self.sign("shut/k", headers=SERVICE)
        self.assertEqual(self.open(address).body, b"mine")
        self.app.value("DELETE", "/object/shut/k", headers=USER)
        self.put("shut/k", b"theirs", OTHER)
        self.assertEqual(told(self.open(address)), MISSING)
        self.assertEqual(self.open(by_service).body, b"theirs")


class Attacks(Signing):
    def test_a_token_is_for_one_object_of_one_bucket(self) -> None:
        token = self.sign().partition("=")[2]
        self.put(f"policed/{ALICE}/b.txt", b"other", USER)
        self.put(f"shown/{ALICE}/a.txt", b"other")
        for path in (
            f"policed/{ALICE}/b.txt",
            f"shown/{ALICE}/a.txt",
            f"policed/{ALICE}/a.txt/",
            f"policed%2F{ALICE}/a.txt",
            f"shown/..%2Fpoliced/{ALICE}/a.txt",
        ):
            response = self.open(f"/object/sign/{path}?token={token}")
            self.assertIn(told(response), (BAD_TOKEN, BAD_KEY, MISSING), path)
        # The same object, however its path is written.
        self.assertEqual(self.open(f"/object/sign/policed/{ALICE}%2Fa.txt?token={token}").status, 200)

    def test_a_token_is_for_one_purpose(self) -> None:
        download = self.sign().partition("=")[2]
        self.put("policed/pic.png", b"png", Content_Type="image/png")
        render = self.sign("policed/pic.png", headers=SERVICE, transform={"width": 5}).partition("=")[2]
        upload = self.app.value("POST", f"/object/upload/sign/policed/{ALICE}/new", {}, USER)["token"]
        access = f"user:{ALICE}"
        for path, tokens in (
            (f"/object/sign/{self.path}", (render, upload, access, "x", ANON_KEY)),
            ("/object/sign/policed/pic.png", (render,)),
            (f"/render/image/sign/{self.path}", (download, upload)),
            (f"/object/sign/policed/{ALICE}/new", (upload, download)),
        ):
            for token in tokens:
                self.assertEqual(told(self.open(f"{path}?token={token}")), BAD_TOKEN, path)
        for token in (download, render):
            refused = self.app.request(
                "PUT", f"{V1}/object/upload/sign/policed/{ALICE}/new?token={token}", {}, b"x"
            )
            self.assertEqual(told(refused), BAD_TOKEN)
            # Nor is one a user's token.
            headers = {"apikey": ANON_KEY, "Authorization": f"Bearer {token}"}
            self.assertEqual(told(self.app.ask("GET", "/bucket", headers=headers)), DENIED)
        self.assertEqual(told(self.open(f"/object/sign/{self.path}")), INVALID)
        self.assertEqual(told(self.open(f"/object/sign/{self.path}?token=")), INVALID)

    def test_forged_tokens(self) -> None:
        token = self.sign().partition("=")[2]
        claims = jwt.decode(token, options={"verify_signature": False})
        kid = self.app.key_set.signing.kid
        head, body, signature = token.split(".")
        key = self.app.key_set.signing
        for forged in (
            jwt.encode(claims, "", "none", {"kid": kid}),
            jwt.encode(claims, b"k" * 32, "HS256", {"kid": kid}),
            jwt.encode(claims, key.private, "ES256", {"kid": kid}),
            jwt.encode(claims, b"k" * 32, "HS256", {"kid": "another"}),
            jwt.encode(claims, b"k" * 32, "HS256"),
            f"{head}.{body}.",
            f"{head}.{body}.{signature[:-2]}",
            "a.b.c",
            "é",
            "x" * 9000,
        ):
            response = self.open(f"/object/sign/{self.path}?token={quote(forged)}")
            self.assertIn(response.status, (400, 414))
            self.assertEqual(self.app.failures, [])

    def test_a_key_that_is_gone_ends_what_it_signed(self) -> None:
        address = self.sign()
        older = self.app.key_set
        self.app.key_set = KeySet((*KeySet.parse(rotated(None, "ES256")).keys, *older.keys))
        self.assertEqual(self.open(address).status, 200)
        self.app.key_set = KeySet.parse(rotated(None, "ES256"))
        self.assertEqual(told(self.open(address)), BAD_TOKEN)

    def test_tokens_are_not_in_the_log(self) -> None:
        log = logged_until_the_end(self)
        address = self.sign()
        self.open(address)
        self.assertIn("/object/sign/policed", str(log))
        self.assertNotIn(address.partition("=")[2], str(log))


class Uploads(Signing):
    def made(self, path: str = "", headers: dict[str, str] = USER, **more: str) -> Any:
        path = path or f"policed/{ALICE}/new"
        sent = {**headers, **{name.replace("_", "-"): value for name, value in more.items()}}
        return self.app.value("POST", f"/object/upload/sign/{path}", {}, sent)

    def take(self, address: str, body: bytes = b"new", **headers: str) -> Response:
        sent = {
            "Content-Type": "text/plain",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.app.request("PUT", V1 + address, sent, body)

    def test_an_address_takes_an_upload(self) -> None:
        made = self.made()
        self.assertEqual(made["url"], f"/object/upload/sign/policed/{ALICE}/new?token={made['token']}")
        response = self.take(
            made["url"], apikey="wrong", Authorization="Bearer wrong", cache_control="max-age=5"
        )
        self.assertEqual(response.status, 200, response.body)
        row = self.row("policed", f"{ALICE}/new")
        said = {"Id": str(row.id), "Key": f"policed/{ALICE}/new"}
        self.assertEqual(json.loads(response.body), said)
        self.assertEqual((str(row.owner), row.max_age_seconds), (ALICE, 5))
        # Whatever the second one says.
        again = self.take(made["url"], x_upsert="true")
        self.assertEqual(told(again), EXISTS)
        self.assertEqual(json.loads(again.body)["message"], "The resource already exists")
        self.assertEqual(self.get(f"/object/policed/{ALICE}/new", USER).body, b"new")

    def test_a_form(self) -> None:
        made = self.made()
        body = form(part("cacheControl", b"9"), part("", b"bytes", "blob", "image/png"))
        self.assertEqual(self.take(made["url"], body, **FORM).status, 200)
        self.assertEqual(self.row("policed", f"{ALICE}/new").content_type, "image/png")

    def test_with_upsert_it_replaces_until_it_expires(self) -> None:
        path = f"policed/{ALICE}/a.txt"
        refused = self.app.ask("POST", f"/object/upload/sign/{path}", {}, USER)
        self.assertEqual(told(refused), EXISTS)
        made = self.made(path, x_upsert="true")
        for body in (b"1", b"2"):
            self.assertEqual(self.take(made["url"], body).status, 200)
        self.assertEqual(self.get(f"/object/{path}", USER).body, b"2")
        self.app.clock.advance(7200)
        self.assertEqual(told(self.take(made["url"])), EXPIRED)

    def test_it_is_for_one_object_of_one_bucket(self) -> None:
        token = self.made()["token"]
        for path in (
            f"policed/{ALICE}/other",
            f"shown/{ALICE}/new",
            f"policed/{BOB}/new",
            f"policed%2F{ALICE}/new",
        ):
            self.assertEqual(told(self.take(f"/object/upload/sign/{path}?token={token}")), BAD_TOKEN, path)
        self.assertEqual(told(self.take(f"/object/upload/sign/policed/../x?token={token}")), BAD_KEY)
        self.assertEqual(told(self.take(f"/object/upload/sign/policed/{ALICE}/new?token=x")), BAD_TOKEN)
        self.assertEqual(told(self.take(f"/object/upload/sign/policed/{ALICE}/new")), INVALID)
        # One of the user's own interface whose uploader chooses the key.
        body = {"method": "PUT", "key_prefix": f"{ALICE}/"}
        link = self.app.value("POST", "/storage/buckets/shut/presign", body, USER, base="")
        token = link["url"].partition("=")[2]
        self.assertEqual(told(self.take(f"/object/upload/sign/shut/{ALICE}/new?token={token}")), BAD_TOKEN)

    def test_who_may_not_upload_makes_none(self) -> None:
        for headers in (OTHER, ANON):
            for upsert in ("true", "false"):
                refused = self.app.ask(
                    "POST", f"/object/upload/sign/policed/{ALICE}/new", {}, {**headers, "x-upsert": upsert}
                )
                self.assertEqual(told(refused), DENIED)
        self.assertEqual(told(self.app.ask("POST", "/object/upload/sign/shut/x", {}, ANON)), DENIED)

    def test_policies_and_owners_are_asked_again(self) -> None:
        self.app.tables.policies = everything
        made = self.made("policed/k", headers=ANON)
        self.app.tables.policies = lambda command, row, who: False
        self.assertEqual(told(self.take(made["url"])), DENIED)
        self.app.rules("shut", owner_only_writes=True)
        made = self.made("shut/k", x_upsert="true")
        self.put("shut/k", b"theirs", OTHER)
        self.assertEqual(told(self.take(made["url"], b"mine")), DENIED)
        self.assertEqual(self.get("/object/shut/k", OTHER).body, b"theirs")

    def test_rules_of_the_bucket_hold(self) -> None:
        made = self.made()
        self.app.ask(
            "PUT", "/bucket/policed", {"file_size_limit": 2, "allowed_mime_types": ["image/*"]}, SERVICE
        )
        self.app.clock.advance(1)
        self.assertEqual(told(self.take(made["url"])), (400, "413", "EntityTooLarge"))
        self.assertEqual(told(self.take(made["url"], b"x")), (400, "415", "InvalidMimeType"))


class Tokens(TestCase):
    def test_every_kind_of_key_signs_and_each_for_itself(self) -> None:
        signed = Signed("b", "k", "download", 2000)
        seen = set()
        for algorithm in ALGORITHMS:
            keys = KeySet.parse(rotated(None, algorithm))
            signatures = Signatures(lambda keys=keys: keys, lambda: 1000.0)  # type: ignore[misc]
            token = signatures.sign(signed)
            self.assertEqual(signatures.sign(signed), token)
            self.assertEqual(signatures.read(token, "download", "b", "k"), signed)
            self.assertEqual(signatures.seconds_left(signed), 1000)
            seen.add(token)
            # An access token of the same key is none, also where that key is a shared secret.
            claims = {"url": "b/k", "scope": "download", "exp": 2000}
            access = jwt.encode(claims, keys.signing.private, algorithm, {"kid": keys.signing.kid})
            with self.assertRaises(ApiError):
                signatures.read(access, "download", "b", "k")
        self.assertEqual(len(seen), len(ALGORITHMS))

    @given(st.integers(1, 10**9), st.integers(0, 10**9))
    def test_an_address_lives_as_long_as_asked_and_a_tenth_more_at_most(self, seconds: int, now: int) -> None:
        keys = KeySet(())
        lives = Signatures(lambda: keys, lambda: float(now)).expiry(seconds) - now
        self.assertTrue(seconds <= lives <= seconds * 1.1)

    @given(st.integers(60, 10**9), st.integers(0, 10**9), st.data())
    def test_within_a_tenth_of_its_life_an_address_changes_at_most_once(
        self, seconds: int, now: int, data: st.DataObject
    ) -> None:
        keys, tenth = KeySet(()), seconds // 10
        times = sorted(data.draw(st.lists(st.integers(now, now + tenth), min_size=2, max_size=5)))
        expiries = [Signatures(lambda: keys, lambda at=at: float(at)).expiry(seconds) for at in times]  # type: ignore[misc]
        self.assertLessEqual(len({*expiries}), 2)
        # And not at all unless a tenth of the time since 1970, in lives of that length, begins in between.
        if (times[0] + seconds - 1) // tenth == (times[-1] + seconds - 1) // tenth:
            self.assertEqual(len({*expiries}), 1)

    @given(st.text())
    def test_no_other_text_is_one(self, text: str) -> None:
        keys = KeySet.parse(_KEYS)
        with self.assertRaises(ApiError) as caught:
            Signatures(lambda: keys, lambda: 0.0).read(text, "download", "b", "k")
        self.assertEqual(caught.exception.code, "token_not_found")


_KEYS = rotated(None, "ES256")
