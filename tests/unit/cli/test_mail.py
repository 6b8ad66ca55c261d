"""``project-service mail``: previews of the mails, and the built-in templates to begin with."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import orjson
from click.testing import CliRunner, Result
from twisted.trial.unittest import TestCase

from project_service.auth.mail_templates import BUILT_IN, EXAMPLE_TOKEN, NAMES, MailTemplates
from project_service.cli import main
from project_service.settings.model import Settings, Smtp
from tests.temporary import temporary_directory

PAGE = "https://app.example/#/reset"


class Mails(TestCase):
    def setUp(self) -> None:
        self.folder = temporary_directory(self) / "mails"
        german = self.folder / "de"
        german.mkdir(parents=True)
        (german / "recovery.txt").write_text(
            "Neues Passwort für {{ email }}\n\n{{ link }}\nEr gilt {{ valid_for }}.\n"
        )

    def run_mail(self, *arguments: str, **environ: str) -> Result:
        settings = {
            "PROJECT_SERVICE__SMTP__TEMPLATES_DIR": str(self.folder),
            "PROJECT_SERVICE__AUTH__RECOVER_URL": PAGE,
            **environ,
        }
        return CliRunner().invoke(main, ["mail", *arguments], env=settings)

    def test_each_mail_is_shown_in_each_language_as_it_would_be_sent(self) -> None:
        ended = self.run_mail("preview", PROJECT_SERVICE__SMTP__SENDER="Notes <no-reply@notes.test>")
        self.assertEqual(ended.exit_code, 0)
        shown = ended.stdout.split("\n\n\n")
        head, *body = next(one for one in shown if one.startswith("recovery in de")).splitlines()
        self.assertEqual(head, f"recovery in de, without HTML: {self.folder}/de/recovery.txt")
        self.assertEqual(
            body,
            [
                "",
                "From: Notes <no-reply@notes.test>",
                "To: ada@example.com",
                "Subject: Neues Passwort für ada@example.com",
                "",
                f"{PAGE}?token={EXAMPLE_TOKEN}",
                "Er gilt 1 Stunde.",
            ],
        )
        heads = [one.partition(":")[0] for one in shown]
        self.assertEqual(
            heads,
            sorted(
                [*(f"{name} in en, with HTML (--html)" for name in NAMES), "recovery in de, without HTML"],
                key=lambda head: (head.split(" ")[0], " de" in head),
            ),
        )
        self.assertIn("Subject: Set a new password for Notes\n", ended.stdout)

    def test_a_language_is_chosen_as_for_a_user(self) -> None:
        for language, subject in (
            ("de-AT", "Neues Passwort für ada@example.com"),
            ("fr", "Set a new password"),
        ):
            (view,) = orjson.loads(
                self.run_mail("preview", "recovery", "--language", language, "--json").stdout
            )
            self.assertEqual((view["name"], view["subject"]), ("recovery", subject))
            self.assertEqual(set(view), {"name", "language", "file", "from", "to", "subject", "text", "html"})

    def test_html_or_text_is_printed_alone(self) -> None:
        expected = MailTemplates.load(Settings(smtp=Smtp())).compose(
            "confirmation", "en", "ada@example.com", EXAMPLE_TOKEN, timedelta(hours=1)
        )
        for option, body in (("--text", expected.text), ("--html", expected.html)):
            ended = self.run_mail("preview", "confirmation", option)
            assert body is not None
            self.assertEqual((ended.exit_code, ended.stdout.rstrip()), (0, body.rstrip()))
            self.assertEqual(
                orjson.loads(self.run_mail("preview", "confirmation", option, "--json").stdout), [body]
            )
        ended = self.run_mail("preview", "recovery", "--language", "de", "--html")
        self.assertEqual((ended.exit_code, ended.stdout), (1, ""))
        self.assertIn(f"there is none beside {self.folder}/de/recovery.txt", ended.stderr)

    def test_a_template_that_cannot_be_used_is_named_with_file_and_line(self) -> None:
        (self.folder / "de" / "recovery.txt").write_text("Neues Passwort\n\n{{ lnik }}\n")
        ended = self.run_mail("preview", "confirmation")
        why = f"smtp.templates_dir: {self.folder}/de/recovery.txt:3: 'lnik' is undefined"
        self.assertEqual((ended.exit_code, ended.stdout), (2, ""))
        self.assertEqual(ended.stderr, f"project-service: {why}\n")
        self.assertEqual(self.run_mail("preview", "welcome").exit_code, 2)

    def test_the_built_in_templates_are_written_to_a_new_folder_and_can_be_used_from_there(self) -> None:
        folder = self.folder.parent / "own"
        ended = self.run_mail("templates", str(folder))
        written = [Path(line).relative_to(folder) for line in ended.stdout.splitlines()]
        self.assertEqual(
            written, sorted(one.relative_to(BUILT_IN) for one in BUILT_IN.rglob("*") if one.is_file())
        )
        own = MailTemplates.load(Settings(smtp=Smtp(templates_dir=str(folder))))
        built_in = MailTemplates.load(Settings())
        for templates in (own, built_in):
            self.assertEqual(templates.languages("recovery"), ["en"])
        mails = [
            templates.compose("recovery", "en", "ada@example.com", EXAMPLE_TOKEN, timedelta(hours=1))
            for templates in (own, built_in)
        ]
        self.assertEqual(*mails)
        again = self.run_mail("templates", str(folder))
        self.assertEqual((again.exit_code, again.stderr), (1, f"project-service: {folder}: File exists\n"))
