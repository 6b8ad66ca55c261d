"""``/admin/mail``: the e-mails in a folder, whatever else is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.auth.mail import MailFolder
from project_service.auth.mail_templates import Mail
from project_service.http.routing import Router
from project_service.operators.assemble import Operators
from project_service.operators.mail import MAX_BYTES, MAX_HEADERS, Mails
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App, Response
from tests.http.storage.app import code
from tests.temporary import temporary_directory

T = TypeVar("T")
NOW = 1_795_230_240.5


async def at_once(function: Callable[[], T]) -> T:
    return function()


class MailTests(TestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "mail"
        self.seconds = 0
        self.folder: MailFolder | None = MailFolder(None, self.path, "Us <us@example.test>", self.now)
        router = Router()
        self.app = App(router)
        Operators((Mails(lambda: self.folder, at_once),)).mount(router)

    def now(self) -> float:
        self.seconds += 1
        return NOW + self.seconds

    def send(
        self, recipient: str = "ada@example.test", subject: str = "Hello", html: str | None = None
    ) -> str:
        assert self.folder is not None
        return self.folder.write(Mail(recipient, subject, "Words: äöü\n", html)).stem

    def get(self, path: str = "", key: str = SERVICE_KEY) -> Response:
        return self.app.request("GET", f"/admin/mail{path}", {"X-Service-Key": key})

    def shown(self, path: str = "") -> dict[str, Any]:
        response = self.get(path)
        self.assertEqual(
            (response.status, response.header("cache-control")), (200, "no-store"), response.body
        )
        value: dict[str, Any] = json.loads(response.body)
        return value

    def file(self, name: str, content: bytes) -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / name).write_bytes(content)

    def test_it_is_for_the_service_key_alone(self) -> None:
        one = self.send()
        for path in ("", f"/{one}"):
            self.assertEqual(code(self.get(path, ANON_KEY)), "service_key_required")
            self.assertEqual(self.app.request("GET", f"/admin/mail{path}").status, 401)

    def test_where_mails_are_sent_there_are_none_to_be_seen(self) -> None:
        one = self.send()
        self.folder = None
        for path in ("", f"/{one}"):
            response = self.get(path)
            self.assertEqual((response.status, code(response)), (409, "mails_not_kept"))

    def test_before_the_first_mail_there_is_no_folder(self) -> None:
        self.assertEqual(self.shown(), {"mails": [], "next": None})

    def test_the_newest_come_first_and_in_pages(self) -> None:
        ids = [self.send(subject=f"Nr. {n} ä") for n in range(5)]
        first = self.shown("?limit=3")
        self.assertEqual([one["id"] for one in first["mails"]], ids[:1:-1])
        self.assertEqual(first["mails"][0]["subject"], "Nr. 4 ä")
        self.assertEqual(first["mails"][0]["to"], "ada@example.test")
        self.assertEqual(first["mails"][0]["sent_at"], "2026-11-21T03:04:05.500000Z")
        second = self.shown(f"?limit=3&before={first['next']}")
        self.assertEqual(([one["id"] for one in second["mails"]], second["next"]), (ids[1::-1], None))
        for wrong in ("limit=0", "limit=201", "limit=x", "before=x", "before=..%2Fx"):
            self.assertEqual(code(self.get(f"?{wrong}")), "validation_failed")

    def test_one_is_shown_with_all_that_it_has(self) -> None:
        mail = self.shown(f"/{self.send(html='<p>Words</p>')}")
        self.assertEqual((mail["text"], mail["html"], mail["cut"]), ("Words: äöü\n", "<p>Words</p>\n", False))
        headers = {one["name"]: one["value"] for one in mail["headers"]}
        self.assertEqual(
            (headers["From"], headers["Auto-Submitted"]), ("Us <us@example.test>", "auto-generated")
        )
        self.assertIsNone(self.shown(f"/{self.send()}")["html"])

    def test_other_names_lead_to_no_file(self) -> None:
        one = self.send()
        self.file("secret.eml", b"Subject: x\r\n\r\n")
        for name in (
            "secret",
            "..%2Fmail%2Fsecret",
            f"{one}.eml",
            f"{one}%0A",
            f"{one}%00",
            "%FF",
            one[:-1] + "/",
        ):
            self.assertEqual(self.get(f"/{name}").status, 404, name)
        self.assertEqual(code(self.get("/20261121T030405.500000Z-00000000")), "mail_not_found")

    def test_whatever_else_is_in_the_folder_is_passed_over(self) -> None:
        one = self.send()
        for name in ("<script>.eml", "x" * 200, "a\nb.eml", os.fsdecode(b"\xff.eml"), ".eml"):
            self.file(name, b"Subject: x\r\n\r\n")
        (self.path / "20261121T030405.500000Z-0000000a.eml").mkdir()
        (self.path / "20261121T030405.500000Z-0000000b.eml").symlink_to("nowhere")
        self.assertEqual([mail["id"] for mail in self.shown()["mails"]], [one])

    def test_a_moment_that_is_none_is_that_of_the_file(self) -> None:
        self.file("99999999T999999.999999Z-00000000.eml", b"To: a@b\r\n\r\n")
        self.assertRegex(self.shown()["mails"][0]["sent_at"], r"\A20\d\d-")

    def test_a_huge_one_is_cut(self) -> None:
        self.file("20261121T030405.500000Z-00000000.eml", b"Subject: x\r\n\r\n" + b"x" * (MAX_BYTES + 10))
        mail = self.shown("/20261121T030405.500000Z-00000000")
        self.assertTrue(mail["cut"])
        self.assertLess(len(mail["text"]), MAX_BYTES)

    def test_of_many_headers_only_the_first_are_looked_for(self) -> None:
        name = "20261121T030405.500000Z-00000000"
        self.file(f"{name}.eml", b"".join(b"x-%d: y\r\n" % n for n in range(5000)) + b"\r\n")
        self.assertEqual(len(self.shown(f"/{name}")["headers"]), MAX_HEADERS)

    def test_parts_within_parts_without_end_are_not_read(self) -> None:
        name = "20261121T030405.500000Z-00000000"
        part = b'Content-Type: multipart/mixed; boundary="%d"\r\n\r\n--%d\r\n'
        self.file(f"{name}.eml", b"Subject: x\r\n" + b"".join(part % (n, n) for n in range(2000)))
        self.assertEqual([one["id"] for one in self.shown()["mails"]], [name])
        self.assertEqual(self.shown(f"/{name}")["text"], None)

    @given(
        st.one_of(
            st.binary(max_size=200),
            st.lists(
                st.sampled_from(
                    [
                        b"Subject: ",
                        b"To: ",
                        b"=?utf-8?b?w6Q?=",
                        b"=?utf-8?q?=FF?=",
                        b"=?nonsense?q?x?=",
                        b"Content-Type: text/html; charset=nonsense",
                        b"Content-Type: multipart/mixed; boundary=b",
                        b"Content-Type: ;;=",
                        b"Content-Transfer-Encoding: base64",
                        b"--b",
                        b"--b--",
                        b"\xff\xfe",
                        b"<a@b",
                        b'"',
                        b"\r\n",
                        b"\n\n",
                        b":",
                    ]
                )
            ).map(b"".join),
        )
    )
    def test_a_broken_one_is_shown_as_far_as_it_can_be_read(self, content: bytes) -> None:
        name = "20261121T030405.500000Z-00000000"
        self.file(f"{name}.eml", content)
        self.assertEqual([one["id"] for one in self.shown()["mails"]], [name])
        self.assertEqual(self.shown(f"/{name}")["id"], name)
