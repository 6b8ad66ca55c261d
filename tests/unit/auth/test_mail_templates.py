"""The e-mails that the service writes: built-in and own templates, what is wrong with them, languages, and links."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st
from jinja2.sandbox import SandboxedEnvironment
from twisted.trial.unittest import TestCase

from project_service.auth.mail import why
from project_service.auth.mail_templates import (
    NAMES,
    NEEDED,
    Mail,
    MailTemplates,
    TemplateFault,
    ToClient,
    with_token,
)
from project_service.auth.values import MailName
from project_service.settings.model import Auth, Settings, Smtp
from tests.temporary import temporary_directory

# The path of an address, or of a route in its fragment, with the parameters after it.
Parts = tuple[str, list[tuple[str, str]]]
pairs = st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=3)


def with_query(parts: Parts) -> str:
    path, parameters = parts
    return f"{path}?{urlencode(parameters)}" if parameters else path


TOKEN = "x" * 43
LINKED = Auth(recover_url="https://x.test/reset?a=b", verify_url="https://x.test/yes")
RESET = "Neues Passwort\n\nHallo {{ email }}!\n{{ link or token }}\nDer Link gilt {{ valid_for }}.\n"


def composed(
    settings: Settings, name: MailName = "recovery", language: str = "en", token: str = TOKEN, hours: int = 1
) -> Mail:
    return MailTemplates.load(settings).compose(
        name, language, "ada@example.test", token, timedelta(hours=hours)
    )


def html_of(mail: Mail) -> str:
    assert mail.html is not None
    return mail.html


class BuiltIn(TestCase):
    def test_the_token_is_on_a_line_of_its_own_and_so_is_the_link(self) -> None:
        for name in NEEDED:
            mail = composed(Settings(), name)
            assert TOKEN in mail.text.splitlines()
            for left in ("http", "None", "{", "}"):
                self.assertNotIn(left, mail.text)
            linked = composed(Settings(auth=LINKED), name)
            link = "https://x.test/reset?a=b&token=" if name == "recovery" else "https://x.test/yes?token="
            assert link + TOKEN in linked.text.splitlines()
            assert TOKEN in linked.text.splitlines()
            self.assertIn(f'href="{link.replace("&", "&amp;")}{TOKEN}"', html_of(linked))
            self.assertNotIn("href", html_of(mail))

    def test_they_are_ascii_so_that_mails_in_files_can_be_searched(self) -> None:
        for name in NEEDED:
            mail = composed(Settings(auth=LINKED), name)
            assert (mail.subject + mail.text + html_of(mail)).isascii()

    def test_hours_are_counted(self) -> None:
        for hours, words in ((1, "for 1 hour."), (2, "for 2 hours.")):
            for name in NEEDED:
                mail = composed(Settings(), name, hours=hours)
                self.assertIn(words, mail.text)
                self.assertIn(words, html_of(mail))

    def test_other_times_are_told_to_the_minute_or_second(self) -> None:
        templates = MailTemplates.load(Settings())
        for seconds, words in ((5400, "for 90 minutes."), (61, "for 61 seconds.")):
            mail = templates.compose("recovery", "en", "a@b.test", TOKEN, timedelta(seconds=seconds))
            self.assertIn(words, mail.text)

    def test_a_client_gets_the_code_to_read_and_the_token_in_the_link(self) -> None:
        templates = MailTemplates.load(Settings(auth=LINKED))
        client = ToClient(f"https://api.test/auth/v1/verify?token={TOKEN}&type=x", "012345", "new@b.test")
        for name in NAMES:
            if name == "already_registered":
                continue
            mail = templates.compose(name, "en", "a@b.test", TOKEN, timedelta(hours=1), client)
            lines = mail.text.splitlines()
            assert "012345" in lines and TOKEN not in lines, name
            assert "x.test" not in mail.text + html_of(mail)
            self.assertIn("012345", html_of(mail))
            self.assertNotIn("012345", mail.subject)
            if name != "reauthentication":
                assert client.link in lines, name
                self.assertIn('href="https://api.test/auth/v1/verify?token=', html_of(mail))
            assert ("new@b.test" in mail.text) is (name == "email_change")
            assert "token" not in mail.text.replace("?token=", "")

    def test_whoever_has_an_account_already_gets_nothing_to_enter(self) -> None:
        mail = MailTemplates.load(Settings(auth=Auth(site_url="https://x.test/"))).compose(
            "already_registered", "en", "a@b.test", TOKEN, timedelta(hours=1), ToClient(None, "012345")
        )
        for body in (mail.text, html_of(mail)):
            self.assertNotIn("012345", body)
            self.assertNotIn(TOKEN, body)
            self.assertIn("https://x.test/", body)

    def test_a_language_that_has_not_all_mails_falls_back(self) -> None:
        folder = temporary_directory(self)
        (folder / "de").mkdir()
        for name in NEEDED:
            (folder / "de" / f"{name}.txt").write_text(RESET)
        smtp = Smtp(templates_dir=str(folder), default_language="de")
        templates = MailTemplates.load(Settings(smtp=smtp))
        assert templates.language_for("recovery", None) == "de"
        assert templates.language_for("magic_link", "de") == "en"
        assert templates.languages("magic_link") == ["en"]

    def test_the_product_is_named_and_escaped_in_html(self) -> None:
        smtp = Smtp(product_name="<Notes> & Co", product_url="https://notes.test/?a&b")
        for name in NEEDED:
            mail = composed(Settings(smtp=smtp), name)
            self.assertTrue(mail.subject.endswith(" for <Notes> & Co"), mail.subject)
            self.assertIn("<Notes> & Co\nhttps://notes.test/?a&b\n", mail.text)
            self.assertIn("&lt;Notes&gt; &amp; Co", html_of(mail))
            self.assertIn('href="https://notes.test/?a&amp;b"', html_of(mail))
            self.assertNotIn("<Notes>", html_of(mail))
        of_sender = Smtp(sender='"Söhne & Co." <a@b.test>')
        self.assertEqual(composed(Settings(smtp=of_sender)).subject, "Set a new password for Söhne & Co.")

    def test_the_subject_is_one_line_and_the_text_has_no_gaps(self) -> None:
        for smtp in (Smtp(), Smtp(product_name="Notes"), Smtp(product_url="https://notes.test")):
            for auth in (Auth(), LINKED):
                for name in NEEDED:
                    mail = composed(Settings(auth=auth, smtp=smtp), name)
                    self.assertEqual(
                        (mail.subject, mail.text), (mail.subject.strip(), mail.text.strip() + "\n")
                    )
                    self.assertNotIn("\n\n\n", mail.text)


class Own(TestCase):
    def setUp(self) -> None:
        self.folder = temporary_directory(self)

    def write(self, **files: str) -> None:
        """``de__recovery__txt`` is de/recovery.txt."""
        for name, text in files.items():
            *above, stem, kind = name.split("__")
            path = self.folder.joinpath(*(one.replace("_", "-") for one in above), f"{stem}.{kind}")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")

    def settings(self, auth: Auth = LINKED, **smtp: Any) -> Settings:
        return Settings(auth=auth, smtp=Smtp(templates_dir=str(self.folder), **smtp))

    def fault(self, auth: Auth = LINKED, **smtp: Any) -> str:
        with self.assertRaises(TemplateFault) as raised:
            MailTemplates.load(self.settings(auth, **smtp))
        return str(raised.exception).removeprefix(f"smtp.templates_dir: {self.folder}/")

    def test_what_is_not_there_is_built_in(self) -> None:
        self.write(de__recovery__txt=RESET)
        templates = MailTemplates.load(self.settings())
        self.assertEqual(templates.languages("recovery"), ["en", "de"])
        self.assertEqual(templates.languages("confirmation"), ["en"])
        mail = templates.compose("recovery", "de", "ada@example.test", TOKEN, timedelta(hours=2))
        link = f"https://x.test/reset?a=b&token={TOKEN}"
        text = f"Hallo ada@example.test!\n{link}\nDer Link gilt 2 Stunden.\n"
        self.assertEqual(mail, Mail("ada@example.test", "Neues Passwort", text))
        self.assertEqual(composed(self.settings()), composed(Settings(auth=LINKED)))

    def test_text_and_html_of_a_mail_are_of_one_folder(self) -> None:
        self.write(en__recovery__txt="Hello\n\n{{ token }}")
        self.assertIsNone(composed(self.settings()).html)
        self.write(en__recovery__html="<p>{{ token }}</p>")
        self.assertEqual(html_of(composed(self.settings())), f"<p>{TOKEN}</p>")

    def test_they_share_the_built_in_layout_or_their_own_and_variables(self) -> None:
        html = '{% extends "_layout.html" %}{% block note %}{{ variables.imprint }}{% endblock %}'
        self.write(de__recovery__txt=RESET, de__recovery__html=html)
        settings = self.settings(template_variables={"imprint": "Söhne & Co"})
        built_in = html_of(composed(settings, language="de"))
        self.assertIn('<html lang="de" dir="ltr">', built_in)
        self.assertIn("Söhne &amp; Co", built_in)
        layout = "<i>{% block note %}{% endblock %}</i>{{ token }}"
        (self.folder / "_layout.html").write_text(layout)
        self.assertEqual(html_of(composed(settings, language="de")), f"<i>Söhne &amp; Co</i>{TOKEN}")
        self.assertIn(f"</i>{TOKEN}", html_of(composed(settings)))

    def test_plural_forms_are_those_of_the_language(self) -> None:
        for language, forms in (
            ("pl", ["1 godzina", "2 godziny", "5 godzin"]),
            ("ru", ["1 час", "2 часа", "5 часов"]),
            ("pt-BR", ["1 hora", "2 horas", "5 horas"]),
        ):
            (self.folder / language).mkdir()
            (self.folder / language / "recovery.txt").write_text(
                "S\n\n{{ token }}\n{{ valid_for }}\n{{ hours }}"
            )
            lines = [
                composed(self.settings(), language=language, hours=hours).text.splitlines()
                for hours in (1, 2, 5)
            ]
            self.assertEqual([line[1] for line in lines], forms)
            self.assertEqual([line[2] for line in lines], ["1", "2", "5"])

    def test_the_default_language_is_that_of_the_settings(self) -> None:
        self.write(de__recovery__txt=RESET, de__confirmation__txt=RESET)
        templates = MailTemplates.load(self.settings(default_language="de"))
        self.assertEqual(templates.languages("recovery"), ["de", "en"])
        self.assertEqual(templates.language_for("recovery", None, "fr"), "de")
        (self.folder / "de" / "confirmation.txt").unlink()
        why = "de/confirmation.txt: there is no such file, and smtp.default_language needs it"
        self.assertEqual(self.fault(default_language="de"), why)

    def test_nothing_is_read_once_they_are_loaded(self) -> None:
        html = "{% if hours == 2 %}{% include '_foot.html' %}{% endif %}{{ token }}"
        self.write(de__recovery__txt=RESET, de__recovery__html=html)
        (self.folder / "_foot.html").write_text("foot ")
        templates = MailTemplates.load(self.settings())
        for file in ("_foot.html", "de/recovery.txt", "de/recovery.html"):
            (self.folder / file).write_text("{% broken")
        mail = templates.compose("recovery", "de", "ada@example.test", TOKEN, timedelta(hours=2))
        self.assertEqual((mail.subject, mail.html), ("Neues Passwort", f"foot {TOKEN}"))

    def test_a_template_cannot_change_what_later_mails_have(self) -> None:
        for change in (
            "update(seen=email)",
            "setdefault('seen', email)",
            "pop('support')",
            "popitem()",
            "clear()",
            "__setitem__('seen', email)",
        ):
            for name in ("txt", "html"):
                self.write(de__recovery__txt=RESET)
                self.write(**{f"de__recovery__{name}": RESET + f"{{{{ variables.{change} }}}}"})
                fault = self.fault(template_variables={"support": "x"})
                self.assertIn(f"recovery.{name}:6: access to attribute", fault)
                self.assertTrue(fault.endswith("is unsafe."), fault)

    def test_each_mail_has_variables_of_its_own(self) -> None:
        """Even if the sandbox let a change through."""
        self.write(de__recovery__txt=RESET)
        templates = MailTemplates.load(self.settings(template_variables={"support": "x"}))
        self.write(de__recovery__txt=RESET + "{{ variables.seen }}{{ variables.update(seen=email) }}")
        loader = templates.environment.loader
        lax = evolve(templates, environment=SandboxedEnvironment(loader=loader))
        for recipient in ("ada@example.test", "bob@example.test"):
            text = lax.compose("recovery", "de", recipient, TOKEN, timedelta(hours=1)).text
            self.assertTrue(text.endswith("\nNone\n"), text)

    def test_what_an_imported_template_sets_is_not_seen_by_the_next_mail(self) -> None:
        self.write(
            de___lib__txt="{% set kept = namespace(who='nobody') %}"
            "{% macro meet(who) %}{{ kept.who }}{% set kept.who = who %}{% endmacro %}",
            de__recovery__txt=f"{RESET}\n{{% from 'de/_lib.txt' import meet %}}Before you: {{{{ meet(email) }}}}\n",
        )
        templates = MailTemplates.load(self.settings())
        for recipient in ("ada@example.test", "bob@example.test"):
            mail = templates.compose("recovery", "de", recipient, TOKEN, timedelta(hours=1))
            self.assertIn("Before you: nobody\n", mail.text)

    def test_a_broken_template_is_named_with_file_and_line(self) -> None:
        for broken, reason in (
            ("{{ tokn }}", "'tokn' is undefined"),
            ("{{ variables.imprint }}", "'dict object' has no attribute 'imprint'"),
            ("{% if link %}", "Unexpected end of template."),
            ("{{ token", "unexpected end of template, expected 'end of print statement'."),
            ("{{ 1 + token }}", "unsupported operand type(s) for +: 'int' and 'str'"),
            ("{% include '_no.txt' %}", "there is no template _no.txt"),
            ("{% include '../../etc/hosts' %}", "there is no template ../../etc/hosts"),
            ("{{ ''.__class__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
            ("{{ token|upcase }}", "No filter named 'upcase'."),
        ):
            self.write(de__recovery__txt=f"Subject\n\n{{{{ token }}}}\n{broken}\n")
            fault = self.fault()
            self.assertTrue(fault.startswith("de/recovery.txt:4: "), fault)
            self.assertIn(reason, fault)

    def test_the_line_is_that_of_the_included_template(self) -> None:
        self.write(de__recovery__txt="Subject\n\n{{ token }}\n\n{% include '_foot.txt' %}")
        (self.folder / "_foot.txt").write_text("\n{{ company }}\n")
        self.assertEqual(self.fault(), "_foot.txt:2: 'company' is undefined")

    def test_what_nobody_uses_is_compiled_too(self) -> None:
        (self.folder / "_later.html").write_text("\n{% endblock %}")
        self.assertTrue(self.fault().startswith("_later.html:2: "), self.fault())

    def test_files_that_are_no_template_of_a_mail_are_faults(self) -> None:
        known = f"is no e-mail: there are {' and '.join(sorted(NAMES))}, each as .txt and .html"
        here = (
            "belongs in the folder of its language, such as en; begin what others include with an underscore"
        )
        for name, reason in (
            ("de/recover.txt", known),
            ("de/Recovery.html", known),
            ("de/recovery.html", "recovery.txt is missing beside it"),
            ("recovery.txt", here),
            ("layout.html", here),
        ):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("x")
            self.assertEqual(self.fault(), f"{name}: {reason}")
            path.unlink()
        why = "is not a language such as de or pt-BR; begin other names with an underscore"
        for name in ("german", "EN", "De-AT", "de_AT", "xx"):
            (self.folder / name).mkdir()
            self.assertEqual(self.fault(), f"{name}: {why}")
            (self.folder / name).rmdir()

    def test_other_files_and_hidden_ones_are_ignored(self) -> None:
        for name in ("README.md", ".git/x.txt", "_images/logo.svg", "de/notes.md", "de/.recovery.txt.swp"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text("{% broken")
        self.assertEqual(MailTemplates.load(self.settings()).languages("recovery"), ["en"])

    def test_a_mail_without_subject_text_or_token_is_a_fault(self) -> None:
        form = "de/recovery.txt:1: the first line is the subject; after it come an empty line and the text"
        for text, reason in (
            ("", form),
            ("Subject", form),
            ("Subject\n\n  \n", form),
            ("{{ token }}\n\n{{ token }}", "de/recovery.txt:1: the subject must not have the token"),
            ("Subject\n\nHello", "de/recovery.txt: the e-mail would not have its {{ link }} or {{ token }}"),
        ):
            self.write(de__recovery__txt=text)
            self.assertEqual(self.fault(), reason)
        self.write(de__recovery__txt=RESET, de__recovery__html="<p>Hello</p>")
        self.assertIn("de/recovery.html: the e-mail would not have its", self.fault())

    def test_a_mail_with_a_link_alone_needs_the_page_that_it_links_to(self) -> None:
        self.write(de__recovery__txt="Subject\n\nHere: {{ link }}")
        self.assertIn(TOKEN, composed(self.settings(), language="de").text)
        self.assertEqual(self.fault(Auth()), "de/recovery.txt: the e-mail would not have its {{ token }}")

    def test_files_that_cannot_be_read_are_faults(self) -> None:
        self.write(de__recovery__txt="x")
        (self.folder / "de" / "recovery.txt").write_bytes(b"Gr\xfc\xdfe\n\n{{ token }}")
        self.assertIn("de/recovery.txt: 'utf-8' codec can't decode", self.fault())
        missing = Settings(smtp=Smtp(templates_dir=str(self.folder / "none")))
        with self.assertRaises(TemplateFault) as raised:
            MailTemplates.load(missing)
        self.assertIn("/none: cannot be read: No such file or directory", str(raised.exception))

    def test_what_fails_later_is_logged_without_the_token(self) -> None:
        self.write(de__recovery__txt="Subject\n\n{{ token }}\n{% if hours == 2 %}{{ {}[token] }}{% endif %}")
        templates = MailTemplates.load(self.settings())
        with self.assertRaises(TemplateFault) as raised:
            templates.compose("recovery", "de", "ada@example.test", TOKEN, timedelta(hours=2))
        self.assertIn(TOKEN, str(raised.exception))
        self.assertEqual(why(raised.exception), f"its template fails: {self.folder}/de/recovery.txt:4")


class Languages(TestCase):
    def setUp(self) -> None:
        folder = temporary_directory(self)
        for language in ("de", "pt-BR", "sr", "sr-Latn", "zh-Hant"):
            (folder / language).mkdir()
            (folder / language / "recovery.txt").write_text(RESET)
        self.templates = MailTemplates.load(Settings(smtp=Smtp(templates_dir=str(folder))))

    def test_the_users_own_language_comes_first_then_the_callers_then_the_default(self) -> None:
        for locale, accepted, language in (
            (None, "", "en"),
            ("de", "en", "de"),
            ("de-AT", "en", "de"),
            ("de_CH", "", "de"),
            ("DE", "", "de"),
            ("de.UTF-8", "", "de"),
            ("de_AT.UTF-8", "en", "de"),
            ("de_DE.ISO-8859-15@euro", "en", "de"),
            ("de_DE.utf8", "en", "de"),
            ("de@euro", "en", "de"),
            ("de-AT@euro.UTF-8", "en", "de"),
            (" de_AT.UTF-8 ", "en", "de"),
            (".UTF-8", "de", "de"),
            ("@euro", "de", "de"),
            ("C.UTF-8", "de", "de"),
            ("POSIX", "de", "de"),
            ("pt_PT.UTF-8", "de", "pt-BR"),
            (None, "de_CH.UTF-8, en;q=0.5", "de"),
            ("sr_RS.UTF-8@latin", "de", "sr-Latn"),
            ("sr_RS", "de", "sr"),
            ("sr_RS@cyrillic", "de", "sr"),
            ("fr", "de", "de"),
            ("fr", "it", "en"),
            (None, "de-AT,de;q=0.9,en;q=0.5", "de"),
            (None, "en;q=0.1, de;q=0.9", "de"),
            (None, "en-US,en;q=0.9,de;q=0.8", "en"),
            (None, "de;q=0, en", "en"),
            (None, "de;q=0", "en"),
            (None, "fr, *;q=0.5", "en"),
            (None, "pt-BR", "pt-BR"),
            (None, "pt-PT, de;q=0.5", "pt-BR"),
            (None, "zh-Hant-TW", "zh-Hant"),
            (7, "de", "de"),
            (["de"], "", "en"),
            ("", "de", "de"),
            ("de-" + "x-" * 8000, "", "de"),
        ):
            chosen = self.templates.language_for("recovery", locale, accepted)
            self.assertEqual(chosen, language, (str(locale)[:20], accepted))

    def test_a_mail_that_a_language_lacks_is_in_the_default_one(self) -> None:
        self.assertEqual(self.templates.language_for("confirmation", "de", "pt-BR"), "en")

    @given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())), st.text())
    def test_whatever_a_user_and_a_caller_prefer_is_a_language(self, locale: object, accepted: str) -> None:
        chosen = self.templates.language_for("recovery", locale, accepted)
        self.assertIn(chosen, self.templates.languages("recovery"))


class Links(TestCase):
    def test_the_token_is_added_where_a_page_looks_for_it(self) -> None:
        for url, link in (
            ("https://x.test", "https://x.test?token=T"),
            ("https://x.test/y/", "https://x.test/y/?token=T"),
            ("https://x.test/y?a=b", "https://x.test/y?a=b&token=T"),
            ("https://x.test/y?", "https://x.test/y?token=T"),
            ("https://x.test/y?a=b&", "https://x.test/y?a=b&token=T"),
            ("https://x.test/y#form", "https://x.test/y?token=T#form"),
            ("https://x.test/y?a=b#", "https://x.test/y?a=b&token=T#"),
            ("https://x.test/#/reset", "https://x.test/#/reset?token=T"),
            ("https://x.test/#!/reset", "https://x.test/#!/reset?token=T"),
            ("https://x.test/?a=b#/reset?c=d", "https://x.test/?a=b#/reset?c=d&token=T"),
        ):
            self.assertEqual(with_token(url, "T"), link)

    @given(
        st.tuples(st.sampled_from(["", "/", "/a", "/a/"]), pairs),
        st.one_of(st.none(), st.tuples(st.sampled_from(["", "form", "/", "/reset", "!/reset"]), pairs)),
        st.text(min_size=1),
    )
    def test_a_token_is_read_back_and_nothing_else_of_the_address_changes(
        self, page: Parts, fragment: Parts | None, token: str
    ) -> None:
        base, hash_ = f"https://x.test{with_query(page)}", None if fragment is None else with_query(fragment)
        assume(token.isprintable())
        before = urlsplit(base if hash_ is None else f"{base}#{hash_}")
        after = urlsplit(with_token(before.geturl(), token))
        in_page = fragment is not None and fragment[0].startswith(("/", "!/"))
        old, new = (urlsplit(one.fragment) if in_page else one for one in (before, after))
        self.assertEqual(parse_qsl(new.query, True), [*parse_qsl(old.query, True), ("token", token)])
        self.assertEqual(new.path, old.path)
        self.assertEqual(after._replace(query="", fragment=""), before._replace(query="", fragment=""))
        if in_page:
            self.assertEqual(after.query, before.query)
        else:
            self.assertEqual(after.fragment, before.fragment)
