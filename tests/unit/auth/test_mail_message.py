"""Mails as messages in the form of RFC 5322, read back by the library and by a strict parser."""

from __future__ import annotations

import email
import random
import re
from base64 import b64decode
from email.policy import default
from quopri import decodestring
from unicodedata import category

from twisted.trial.unittest import TestCase

from project_service.auth.mail_message import message
from project_service.auth.mail_templates import Mail

# A range of letters of each of twenty scripts, most of them with a language that is written in it.
SCRIPTS = {
    "Latin": "az",
    "Latin with accents": "à\u017e",
    "Greek": "αω",
    "Cyrillic": "ая",
    "Armenian": "աֆ",
    "Hebrew": "את",
    "Arabic": "ني",
    "Devanagari": "अह",
    "Bengali": "অঔ",
    "Gurmukhi": "ਕਨ",
    "Gujarati": "કન",
    "Tamil": "அஎ",
    "Telugu": "కన",
    "Thai": "กฮ",
    "Georgian": "აჰ",
    "Ethiopic": "ሀሆ",
    "Khmer": "កអ",
    "Hiragana": "ぁん",
    "Han": "一龥",
    "Hangul": "가힣",
    "Emoji, outside the basic plane": "😀😿",
}
LETTERS = [
    [chr(code) for code in range(ord(ends[0]), ord(ends[1]) + 1) if category(chr(code))[0] in "LS"]
    for ends in SCRIPTS.values()
]
ENCODED_WORD = re.compile(r"=\?utf-8\?([bq])\?([!->@-~]+)\?=")
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
MAILBOX = re.compile(rf'(?:(.+?) )?<({ATOM}(?:\.{ATOM})*@[a-z0-9.-]+)>|([^<> ,"]+@[a-z0-9.-]+)', re.DOTALL)
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def fields(raw: bytes) -> dict[str, str]:
    """The header of a message, unfolded. Every line has to be as short and of such characters as the RFCs demand."""
    lines = raw.partition(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        assert line.strip() and line.isprintable(), line
        assert len(line) <= (76 if "=?" in line else 78), line
        if line[0] == " ":
            found[name] += line
        else:
            name, _, value = line.partition(": ")
            assert re.fullmatch("[!-9;-~]+", name) and name not in found, line
            found[name] = value
    return found


def text_of(value: str) -> str:
    """The text of an unstructured field, or of a phrase without quotes. RFC 2047 section 5: no white space counts
    between two encoded words, each has whole characters, and nothing else that looks like one is there."""
    if "=?" not in value:
        return value
    decoded = []
    for word in value.split(" "):
        assert len(word) <= 75, word
        match = ENCODED_WORD.fullmatch(word)
        assert match is not None, value
        raw = (
            b64decode(match[2], validate=True)
            if match[1] == "b"
            else decodestring(match[2].replace("_", " "))
        )
        if match[1] == "q":
            assert re.fullmatch("(?:[A-Za-z0-9!*+/_-]|=[0-9A-F]{2})+", match[2]), word
        decoded.append(raw.decode("utf-8"))
    return "".join(decoded)


def mailbox_of(value: str) -> tuple[str, str]:
    """The name and the address of the one mailbox in a field."""
    match = MAILBOX.fullmatch(value)
    assert match is not None, value
    if match[1] is None:
        return "", match[2] or match[3]
    if quoted := QUOTED.fullmatch(match[1]):
        return re.sub(r"\\(.)", r"\1", quoted[1]), match[2]
    assert "=?" in match[1] or re.fullmatch(rf"{ATOM}( {ATOM})*", match[1]), value
    return text_of(match[1]), match[2]


def texts(chance: random.Random, number: int) -> list[str]:
    """Words of all scripts, some of them mixed, very short and very long, with what means something in a header."""

    def word(scripts: list[list[str]]) -> str:
        letters = chance.choice(scripts)
        length = chance.choice((1, 2, 5, 9, 30 if chance.random() < 0.1 else 7))
        return "".join(chance.choice(letters) for _ in range(length))

    def one() -> str:
        separators = chance.choice(
            ([" "], [" ", ", ", "  "], ["", " ", '"', "\\", "; ", " <", "> ", "=?", "?=", "@", "."])
        )
        count = chance.choice((1, 3, 6, 12))
        scripts = chance.choice((LETTERS, LETTERS[:1], LETTERS[:2], chance.sample(LETTERS, 1)))
        return "".join(word(scripts) + chance.choice(separators) for _ in range(count)).strip()

    return [one() for _ in range(number)]


class Messages(TestCase):
    def test_subjects_and_names_in_twenty_scripts_are_read_back_by_a_strict_parser(self) -> None:
        chance = random.Random(2047)
        number = 5000
        self.assertGreaterEqual(len(SCRIPTS), 20)
        for subject, name in zip(texts(chance, number), texts(chance, number), strict=True):
            quoted = re.sub(r'(["\\])', r"\\\1", name)
            mail = Mail("ada@example.test", subject, "t")
            found = fields(message(mail, f'"{quoted}" <noreply@example.test>', 0, "id"))
            self.assertEqual(text_of(found["Subject"]), subject)
            self.assertEqual(mailbox_of(found["From"]), (name, "noreply@example.test"))

    def test_they_are_read_by_the_library_too(self) -> None:
        long = "Überprüfung, " * 20 + "Ende"
        name = "Very, long names of companies,  and so on, " * 5 + "Ltd."
        mail = Mail("ada@example.test", long, "t")
        parsed = email.message_from_bytes(message(mail, f'"{name}" <a@b.test>', 0, "id"), policy=default)
        self.assertEqual(parsed["Subject"], long)
        (sender,) = parsed["From"].addresses
        self.assertEqual((sender.display_name, sender.addr_spec), (name, "a@b.test"))

    def test_short_ascii_is_written_as_it_is(self) -> None:
        for subject, sender, subject_line, from_line in (
            ("Set a new password", "Acme <a@b.test>", b"Set a new password", b"Acme <a@b.test>"),
            ("a  b: (c)", '"Acme, Inc." <a@b.test>', b"a  b: (c)", b'"Acme, Inc." <a@b.test>'),
            ("x" * 67, "a@b.test", b"x" * 67, b"a@b.test"),
            # What would be taken for an encoded word is one.
            (
                "=?utf-8?q?x?=",
                '"=?" <a@b.test>',
                b"=?utf-8?b?PT91dGYtOD9xP3g/PQ==?=",
                b"=?utf-8?b?PT8=?= <a@b.test>",
            ),
        ):
            raw = message(Mail("ada@example.test", subject, "t"), sender, 0, "id")
            self.assertIn(b"\r\nSubject: %b\r\n" % subject_line, raw)
            self.assertTrue(raw.startswith(b"From: %b\r\n" % from_line), raw)

    def test_a_subject_of_control_characters_stays_one_field(self) -> None:
        for character in "\t\0\x0b\x0c\x1b\x7f\x85\u2028":
            subject = f"a{character}Bcc: eve@example.test"
            found = fields(message(Mail("ada@example.test", subject, "t"), "a@b.test", 0, "id"))
            self.assertEqual(text_of(found["Subject"]), subject)
            self.assertNotIn("Bcc", found)

    def test_the_message_is_rfc_5322(self) -> None:
        mail = Mail("zoe@bücher.test", "Ein Betreff mit ü", "Zeile eins\n.\nFrom hier\n")
        raw = message(mail, "Project <noreply@example.test>", 1_795_230_245, "id-1")
        assert b"\r\n" in raw and b"\n" not in raw.replace(b"\r\n", b"")
        assert raw.isascii()
        parsed = email.message_from_bytes(raw, policy=default)
        assert parsed["Subject"] == "Ein Betreff mit ü"
        assert parsed["Message-ID"] == "<id-1@example.test>"
        assert parsed["Date"] == "Sat, 21 Nov 2026 03:04:05 -0000"
        assert parsed["Auto-Submitted"] == "auto-generated"
        assert parsed.get_content().splitlines() == ["Zeile eins", ".", "From hier"]

    def test_html_is_an_alternative_to_the_text_which_comes_first(self) -> None:
        mail = Mail("ada@example.test", "s", "Text\n", "<p>Grüße</p>\n")
        raw = message(mail, "noreply@example.test", 0, "id-1")
        self.assertEqual(raw, message(mail, "noreply@example.test", 0, "id-1"))
        assert raw.isascii()
        parsed = email.message_from_bytes(raw, policy=default)
        self.assertEqual(parsed.get_content_type(), "multipart/alternative")
        self.assertEqual(
            [(one.get_content_type(), one.get_content()) for one in parsed.iter_parts()],
            [("text/plain", "Text\r\n"), ("text/html", "<p>Grüße</p>\r\n")],
        )

    def test_lines_that_smtp_does_not_carry_are_encoded(self) -> None:
        long = "x" * 999
        raw = message(Mail("ada@example.test", "s", long, f"<p>{long}</p>"), "noreply@example.test", 0, "id")
        assert all(len(line) <= 998 for line in raw.splitlines())
        parsed = email.message_from_bytes(raw, policy=default)
        self.assertEqual([one.get_content().strip() for one in parsed.iter_parts()], [long, f"<p>{long}</p>"])

    def test_domains_are_sent_in_ascii_and_display_names_unencoded_in_addresses(self) -> None:
        """RFC 2047 section 5 forbids an encoded word within an address."""
        mail = Mail("ada@bücher.test", "s", "t")
        for sender, named in (
            ('"Büro, München" <noreply@bücher.test>', "Büro, München"),
            ("Project <noreply@bücher.test>", "Project"),
            ("noreply@bücher.test", ""),
        ):
            raw = message(mail, sender, 0, "id")
            head = dict(line.split(b": ", 1) for line in raw.partition(b"\r\n\r\n")[0].split(b"\r\n"))
            assert head[b"To"] == b"ada@xn--bcher-kva.test"
            assert head[b"From"].split(b" ")[-1].strip(b"<>") == b"noreply@xn--bcher-kva.test"
            (sender_,) = email.message_from_bytes(raw, policy=default)["From"].addresses
            assert (sender_.display_name, sender_.addr_spec) == (named, "noreply@xn--bcher-kva.test")

    def test_an_ascii_mail_is_sent_unencoded_and_others_arrive_unchanged(self) -> None:
        link, more = "https://x.test/a?token=TOKEN", "Grüße"
        for text, plain in ((link, True), (f"{link}\n{more}", False)):
            raw = message(Mail("ada@example.test", "s", text), "noreply@example.test", 0, "id")
            assert (raw.isascii(), link.encode() in raw) == (True, plain)
            assert email.message_from_bytes(raw, policy=default).get_content().split() == text.split()

    def test_line_breaks_in_header_fields_are_refused(self) -> None:
        for field in ("recipient", "subject"):
            parts = {"recipient": "ada@example.test", "subject": "Hello", "text": "x"}
            parts[field] += "\r\nBcc: everyone@example.test"
            with self.assertRaises(ValueError):
                message(Mail(**parts), "noreply@example.test", 0, "id")

    def test_control_characters_are_encoded_in_the_text_too(self) -> None:
        for character in "\0\x1b\x0b\x7f":
            text = f"a{character}b\n"
            raw = message(Mail("ada@example.test", "s", text, f"<p>{text}</p>"), "a@b.test", 0, "id")
            assert re.fullmatch(rb"[\t\r\n -~]+", raw)
            parsed = email.message_from_bytes(raw, policy=default)
            self.assertEqual(
                next(parsed.iter_parts()).get_payload(decode=True), text.replace("\n", "\r\n").encode()
            )
