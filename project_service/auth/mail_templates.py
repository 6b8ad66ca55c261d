"""The e-mails that the service writes: in which language a user gets one, and the templates they are made of, those
of ``smtp.templates_dir`` and those of this package.

All templates are compiled and tried when they are loaded, so that a broken one stops the start and not an e-mail.
Nothing is read from the disk afterwards.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import timedelta
from email.utils import parseaddr
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from attrs import frozen
from babel import Locale, UnknownLocaleError
from babel.dates import format_timedelta
from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    StrictUndefined,
    Template,
    TemplateNotFound,
    TemplateSyntaxError,
    select_autoescape,
)
from jinja2.environment import TemplateModule
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from werkzeug.datastructures import LanguageAccept
from werkzeug.http import parse_accept_header

from project_service.auth.values import MailName
from project_service.settings.model import Settings
from project_service.settings.reading import ConfigurationError

BUILT_IN = Path(__file__).parent / "templates"
NAMES: tuple[MailName, ...] = get_args(MailName)
# Those that ``smtp.default_language`` has to have. Of the others, which clients of the Supabase family alone ask for,
# the built-in one is sent if it has not.
NEEDED: tuple[MailName, ...] = ("recovery", "confirmation")
BUILT_IN_LANGUAGE = "en"
TEXT, HTML = ".txt", ".html"
# What mails are filled with to try their templates, and to show them. The token has the form of a real one.
EXAMPLE_EMAIL = "ada@example.com"
EXAMPLE_TOKEN = "EXAMPLE-each-mail-has-another-token-EXAMPLE"  # noqa: S105  # it opens nothing
EXAMPLE_CODE = "123456"
EXAMPLE_LINK = "https://api.example.com/auth/v1/verify?token="
EXAMPLE_NEW_EMAIL = "ada@new.example.com"


class TemplateFault(ConfigurationError):
    """A template cannot be used. ``where`` is its file, with the line if it is known. The text of the exception may
    quote what was rendered, so it is for the start, where there are only examples."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"smtp.templates_dir: {where}: {reason}")
        self.where = where


@frozen
class Mail:
    """A mail to ``recipient``. Without ``html`` it is text alone."""

    recipient: str
    subject: str
    text: str
    html: str | None = None


@frozen
class ToClient:
    """What is in a mail that a client of the Supabase family asked for: a link, unless there is none to give, and a
    code; the new address, in a change of address; and where the link leads in the end."""

    link: str | None
    code: str
    new_email: str = ""
    redirect_to: str = ""


# There is nothing to do by them but to enter the code, or nothing at all.
_WITHOUT_LINK: tuple[MailName, ...] = ("reauthentication", "already_registered")


@frozen
class _Form:
    """The templates of one mail in one language, by name."""

    text: str
    html: str | None


@frozen
class MailTemplates:
    """``forms`` are the mails in each of their languages. ``links`` has the page to which a mail links, if any."""

    folders: tuple[Path, ...]
    environment: SandboxedEnvironment
    forms: Mapping[MailName, Mapping[str, _Form]]
    default_language: str
    variables: Mapping[str, Any]
    links: Mapping[MailName, str | None]

    @classmethod
    def load(cls, settings: Settings) -> MailTemplates:
        """The templates of ``smtp.templates_dir``, and built-in ones for what is not there. Raises
        ``TemplateFault``."""
        smtp, auth = settings.smtp, settings.auth
        folders = (BUILT_IN,) if smtp.templates_dir is None else (Path(smtp.templates_dir), BUILT_IN)
        templates = cls(
            folders,
            _built_in() if smtp.templates_dir is None else _environment(folders),
            _forms(folders),
            smtp.default_language,
            {
                "product_name": smtp.product_name or parseaddr(smtp.sender or "")[0],
                "product_url": smtp.product_url or "",
                "variables": smtp.template_variables,
                "site_url": auth.site_url or "",
            },
            {
                "recovery": auth.recover_url,
                "invitation": auth.recover_url,
                "confirmation": auth.verify_url,
            },
        )
        for name in NEEDED:
            if smtp.default_language not in templates.forms[name]:
                missing = folders[0] / smtp.default_language / f"{name}{TEXT}"
                raise TemplateFault(str(missing), "there is no such file, and smtp.default_language needs it")
        templates._try_all()
        return templates

    def languages(self, name: MailName) -> list[str]:
        """The languages in which the mail ``name`` is written, the default first."""
        return sorted(self.forms[name], key=lambda one: (one != self._default(name), one))

    def _default(self, name: MailName) -> str:
        return self.default_language if self.default_language in self.forms[name] else BUILT_IN_LANGUAGE

    def language_for(self, name: MailName, locale: object, accept_language: str = "") -> str:
        """The language in which to write to somebody, of those that the mail has: that of ``locale``, which may be
        any value, else the one that ``accept_language``, a header, ranks first, else the default."""
        preferred = [locale] if isinstance(locale, str) else []
        accepted = parse_accept_header(accept_language, LanguageAccept)
        preferred += [tag for tag, quality in accepted if quality > 0]
        return _looked_up(preferred, self.forms[name]) or self._default(name)

    def compose(
        self,
        name: MailName,
        language: str,
        recipient: str,
        token: str,
        lifetime: timedelta,
        to_client: ToClient | None = None,
    ) -> Mail:
        """A mail in one of its languages, with a token that is valid for ``lifetime``. Raises ``TemplateFault``."""
        form, url = self.forms[name][language], self.links.get(name)
        page = None if url is None else with_token(url, token)
        link, code = (page, "") if to_client is None else (to_client.link, to_client.code)
        # What the reader may enter somewhere.
        entered = code or token
        if name == "already_registered":
            entered = token = ""
        locale = Locale.parse(language, sep="-")
        values = {
            # Copied, so that nothing of one mail can be left in the next.
            **deepcopy(dict(self.variables)),
            "language": language,
            "direction": locale.text_direction,
            "email": recipient,
            "new_email": "" if to_client is None else to_client.new_email,
            "token": entered,
            "code": code,
            "token_hash": token,
            "link": link or "",
            "redirect_to": "" if to_client is None else to_client.redirect_to,
            "hours": -(-int(lifetime.total_seconds()) // 3600),
            # In words, because languages differ in how many plural forms they have.
            "valid_for": format_timedelta(
                lifetime, granularity=_granularity(lifetime), threshold=10**6, locale=locale
            ),
        }
        subject, _, text = self._rendered(form.text, values).strip().partition("\n")
        if not text.strip():
            reason = "the first line is the subject; after it come an empty line and the text"
            raise TemplateFault(f"{self._file(form.text)}:1", reason)
        html = None if form.html is None else self._rendered(form.html, values)
        if entered:
            if entered in subject or token in subject:
                raise TemplateFault(f"{self._file(form.text)}:1", "the subject must not have the token")
            for template, body in ((form.text, text), (form.html, html)):
                if template is not None and body is not None and entered not in body and token not in body:
                    needed = "{{ link }} or {{ token }}" if link else "{{ token }}"
                    raise TemplateFault(self._file(template), f"the e-mail would not have its {needed}")
        return Mail(recipient, subject.strip(), text.strip() + "\n", html)

    def example(self, name: MailName, language: str) -> Mail:
        """The mail as it would be sent, with an example of a token. Raises ``TemplateFault``."""
        to_client = None
        if name not in NEEDED:
            link = None if name in _WITHOUT_LINK else EXAMPLE_LINK + EXAMPLE_TOKEN
            to_client = ToClient(link, EXAMPLE_CODE, EXAMPLE_NEW_EMAIL)
        return self.compose(name, language, EXAMPLE_EMAIL, EXAMPLE_TOKEN, timedelta(hours=1), to_client)

    def file_of(self, name: MailName, language: str) -> str:
        """The file of a mail's text."""
        return self._file(self.forms[name][language].text)

    def _try_all(self) -> None:
        # All are compiled, also those that are only included on some condition.
        for template in self.environment.list_templates([TEXT[1:], HTML[1:]]):
            if any(one.startswith(".") for one in template.split("/")):
                continue
            try:
                self.environment.get_template(template)
            except Exception as fault:
                raise self._fault(template, fault) from None
        for name in NAMES:
            for language in self.forms[name]:
                self.example(name, language)

    def _rendered(self, template: str, values: Mapping[str, Any]) -> str:
        try:
            return self.environment.get_template(template).render(values)
        except Exception as fault:
            raise self._fault(template, fault) from None

    def _fault(self, template: str, fault: Exception) -> TemplateFault:
        if isinstance(fault, TemplateSyntaxError):
            return TemplateFault(f"{fault.filename}:{fault.lineno}", str(fault.message))
        reason = f"there is no template {fault}" if isinstance(fault, TemplateNotFound) else str(fault)
        # Jinja shows each template as a frame with its own file and lines.
        frames = traceback.extract_tb(fault.__traceback__)
        lines = [f"{one.filename}:{one.lineno}" for one in frames if one.filename.endswith((TEXT, HTML))]
        return TemplateFault(lines[-1] if lines else self._file(template), reason or type(fault).__name__)

    def _file(self, template: str) -> str:
        return str(next(folder / template for folder in self.folders if (folder / template).exists()))


class _Template(Template):
    """Jinja keeps what an imported template has set, also for later mails, where another user would see it. Here each
    import begins anew. (``test_mail_templates.py`` shows that this override is still called.)"""

    def _get_default_module(self, ctx: Context | None = None) -> TemplateModule:
        self._module = None
        return super()._get_default_module(ctx)


class _Environment(ImmutableSandboxedEnvironment):
    template_class = _Template


def _environment(folders: Iterable[Path]) -> _Environment:
    """What compiles the templates in the folders, each once."""
    return _Environment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )


@cache
def _built_in() -> _Environment:
    # These do not change while the service runs.
    return _environment((BUILT_IN,))


def _forms(folders: Iterable[Path]) -> Mapping[MailName, Mapping[str, _Form]]:
    """The mails in the folders, of which earlier ones take precedence. Text and HTML are always of one folder."""
    forms: dict[MailName, dict[str, _Form]] = {name: {} for name in NAMES}
    for folder in folders:
        for language in _languages(folder):
            for name in _mails(folder / language):
                html = f"{language}/{name}{HTML}"
                form = _Form(f"{language}/{name}{TEXT}", html if (folder / html).exists() else None)
                forms[name].setdefault(language, form)
    return forms


def _languages(folder: Path) -> Iterator[str]:
    """The languages for which ``folder`` has a folder. What begins with an underscore is for other templates to
    include, and what begins with a dot is not looked at."""
    for entry in _entries(folder):
        if entry.is_dir():
            if not _is_language(entry.name):
                reason = "is not a language such as de or pt-BR; begin other names with an underscore"
                raise TemplateFault(str(entry), reason)
            yield entry.name
        elif entry.suffix in (TEXT, HTML):
            reason = "belongs in the folder of its language, such as en; begin what others include with an underscore"
            raise TemplateFault(str(entry), reason)


def _is_language(tag: str) -> bool:
    """Whether ``tag`` is that of a language in Unicode's CLDR, with the language in lower case: a folder EN beside
    the built-in en would be another language of the same name."""
    try:
        Locale.parse(tag, sep="-")
    except (ValueError, UnknownLocaleError):
        return False
    return tag.partition("-")[0].islower()


def _mails(folder: Path) -> Iterator[MailName]:
    """The mails of which ``folder``, that of a language, has the text."""
    by_file = {f"{name}{kind}": name for name in NAMES for kind in (TEXT, HTML)}
    for entry in _entries(folder):
        if entry.suffix not in (TEXT, HTML):
            continue
        name = by_file.get(entry.name)
        if name is None:
            known = " and ".join(sorted(NAMES))
            raise TemplateFault(str(entry), f"is no e-mail: there are {known}, each as {TEXT} and {HTML}")
        if entry.suffix == TEXT:
            yield name
        elif not entry.with_suffix(TEXT).exists():
            raise TemplateFault(str(entry), f"{name}{TEXT} is missing beside it")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(("_", ".")))
    except OSError as fault:
        raise TemplateFault(str(folder), f"cannot be read: {fault.strerror}") from None


def _looked_up(preferred: Iterable[str], available: Iterable[str]) -> str | None:
    """The first preference that can be met: a tag's own language, else without its last subtags (RFC 4647 section
    3.4), else another form of it, such as pt-BR for pt-PT."""
    tags = {one.lower(): one for one in available}
    for preference in preferred:
        wanted = _subtags(preference)
        for length in range(len(wanted), 0, -1):
            if (tag := "-".join(wanted[:length])) in tags:
                return tags[tag]
        for tag in sorted(tags):
            if tag.partition("-")[0] == wanted[0]:
                return tags[tag]
    return None


def _granularity(lifetime: timedelta) -> Literal["hour", "minute", "second"]:
    """Hours, if it is a whole number of them, and so on."""
    seconds = int(lifetime.total_seconds())
    return "hour" if seconds % 3600 == 0 else "minute" if seconds % 60 == 0 else "second"


# The modifiers of POSIX locales that are a script.
_SCRIPTS = {"latin": "latn", "cyrillic": "cyrl", "devanagari": "deva"}


def _subtags(locale: str) -> list[str]:
    """The parts of a language tag such as de-AT, or of the name of a POSIX locale such as ``de_AT.UTF-8@euro``, of
    which the character set and most modifiers say nothing about the language."""
    name, _, modifier = locale.strip().lower().partition("@")
    language, *others = name.partition(".")[0].replace("_", "-").split("-")
    script = _SCRIPTS.get(modifier.partition(".")[0])
    return [language, *([script] if script is not None else []), *others]


def with_token(url: str, token: str) -> str:
    """``url`` with ``token`` as another parameter.

    It is added to the query. If the fragment is a route of the page's own (``#/reset``, ``#!/reset``), it is added
    there, since routers in a page read parameters from the fragment alone.
    """
    base, hash_mark, fragment = url.partition("#")
    parameter = f"token={quote(token, safe='')}"
    if fragment.startswith(("/", "!/")):
        return f"{base}#{_with_parameter(fragment, parameter)}"
    return f"{_with_parameter(base, parameter)}{hash_mark}{fragment}"


def _with_parameter(path: str, parameter: str) -> str:
    if "?" not in path:
        return f"{path}?{parameter}"
    return f"{path}{parameter}" if path.endswith(("?", "&")) else f"{path}&{parameter}"
