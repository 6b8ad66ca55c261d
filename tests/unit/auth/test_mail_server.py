"""The mail server: the name by which the service introduces itself, and what is shown of faults and of replies."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode

from twisted.trial.unittest import TestCase

from project_service.auth.mail_server import Private, helo_name, why_not
from project_service.auth.mail_templates import Mail
from project_service.settings.model import Secret, Smtp

TOKEN = "kC9x_Zb4-QmT7vRw2LpE8yHdN1sJ6fAu3gXo5iVtB0q"
TEXT = (
    f"You asked for a new password. Open this page to set it:\nhttps://app.example.test/reset?token={TOKEN}\n"
)
MAIL = Mail("ada@bücher.test", "Set a new password for Notes", TEXT, f"<p>{TEXT}</p>")
SETTINGS = Smtp(
    host="mail.example.test", sender="a@b.test", username="mailer@b.test", password=Secret("hush")
)


class Names(TestCase):
    def test_the_service_introduces_itself_as_the_nearest_of_its_names(self) -> None:
        for helo, public_url, sender, name in (
            ("me.example.com", "https://api.example.com", "a@b.test", "me.example.com"),
            ("[192.0.2.1]", "https://api.example.com", "a@b.test", "[192.0.2.1]"),
            (None, "https://api.example.com:8443/v1", "a@b.test", "api.example.com"),
            (None, "https://API.Bücher.test", "a@b.test", "api.xn--bcher-kva.test"),
            (None, None, "Acme <a@bücher.test>", "xn--bcher-kva.test"),
            # These say nothing about a host that others know.
            (None, "http://localhost:8080", "a@b.test", "b.test"),
            (None, "http://intranet", "a@b.test", "b.test"),
            (None, "http://10.0.0.1", "a@b.test", "b.test"),
            (None, "http://[::1]:8080", "a@b.test", "b.test"),
            (None, "http://127.0.0.1", None, None),
            (None, None, None, None),
        ):
            self.assertEqual(helo_name(Smtp(helo=helo, sender=sender), public_url), name)


class Words(TestCase):
    def shown(self, words: str) -> str:
        return Private.of(SETTINGS, MAIL).hidden_in(words)

    def test_a_servers_words_are_shown(self) -> None:
        for words in (
            "4.7.1 Greylisted, try again in 300 s",
            "5.7.1 Service unavailable; client [192.0.2.1] blocked using zen.example.org",
            "5.5.1 Command rejected, see https://support.example.com/?p=WantAuth b7-20020a056402.123 - gsmtp",
            "",
        ):
            self.assertEqual(self.shown(words), words)

    def test_credentials_and_the_recipient_are_not_shown(self) -> None:
        for words, shown in (
            ("5.7.8 hush is not the password", "5.7.8 … is not the password"),
            ("5.7.8 HUSH! mailer@b.test", "5.7.8 …! …"),
            ("5.1.1 <ada@xn--bcher-kva.test>: no such user", "5.1.1 <…>: no such user"),
            ("5.1.1 <Ada@Bücher.test>... no such user", "5.1.1 <…>... no such user"),
            ("5.1.1 hush hush\u00a0hush", "5.1.1 …"),
            ("5.1.1 ada@bücher. test is long", "5.1.1 … is long"),
        ):
            self.assertEqual(self.shown(words), shown)

    def test_nothing_of_the_mail_is_shown(self) -> None:
        for words in (
            TOKEN,
            f"5.7.1 spam: https://app.example.test/reset?token={TOKEN}",
            f"5.7.1 spam: {TOKEN[:20]}",
            f"5.7.1 spam: {TOKEN[20:]}, and {TOKEN[:25].upper()}",
            f"5.7.1 spam: {TOKEN[:10]} {TOKEN[10:]}",
            f"5.7.1 spam: {TOKEN[:10]}\t{TOKEN[10:14]}\u2003{TOKEN[14:]}",
            "5.7.1 spam: " + "\u200b".join(TOKEN),
            "5.7.1 spam: " + "\x00".join(TOKEN),
            "5.7.1 spam: Set a new password for Notes",
            "5.7.1 spam: You asked for a new password",
            f"5.7.1 spam: {TEXT}",
            f"5.7.1 spam: <p>{TEXT}</p>",
        ):
            shown = self.shown(words)
            for piece in (TOKEN[:6], TOKEN[20:28], "new password", "asked for", "reset?"):
                self.assertNotIn(piece.lower(), shown.lower(), words)
            self.assertRegex(shown, "^(5.7.1 spam:? ?)?…")

    def test_what_was_sent_to_log_in_is_not_shown(self) -> None:
        private = Private.of(SETTINGS, None)
        sent = b64encode(b"\0mailer\0correct horse battery").decode()
        private.add_sent(b"\0mailer\0correct horse battery", sent)
        for words in (sent, sent.lower(), sent[:14], sent[5:], f"bad: {sent}"):
            self.assertEqual(private.hidden_in(words).removeprefix("bad: ")[:1], "…", words)


class Faults(TestCase):
    def test_each_is_explained_in_words_of_ours(self) -> None:
        other_name = ssl.SSLCertVerificationError("hush")
        other_name.verify_code, other_name.verify_message = 62, "hush"
        expired = ssl.SSLCertVerificationError("hush")
        expired.verify_code, expired.verify_message = 10, "certificate has expired"
        for fault, words in (
            (TimeoutError("hush"), "the mail server does not answer in time"),
            (ssl.SSLEOFError("hush"), "the mail server closes the connection"),
            (BrokenPipeError("hush"), "the mail server closes the connection"),
            (socket.gaierror(-2, "hush"), "smtp.host has no address"),
            (OSError(113, "No route to host"), "the mail server cannot be reached: No route to host"),
            (other_name, "the mail server's certificate is for another name than smtp.host"),
            (expired, "the mail server's certificate is not trusted: certificate has expired"),
            (UnicodeError("hush"), "an address or smtp.host has characters that SMTP does not accept"),
            (ValueError("hush"), "ValueError"),
        ):
            explained = why_not(fault)
            self.assertIn(words, explained)
            self.assertNotIn("hush", explained)
