"""``project-service mail``: preview, templates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import click

from project_service.auth.mail_server import NOBODY
from project_service.auth.mail_templates import (
    BUILT_IN,
    NAMES,
    MailTemplates,
    TemplateFault,
)
from project_service.auth.values import MailName
from project_service.cli import NonEmptyPath, project_options
from project_service.cli.invocation import FAILED, USAGE, Invocation, common_options, end

# What is shown of an e-mail, as with --json.
_View = Mapping[str, str | None]


@click.group()
@project_options
def mail() -> None:
    """The e-mails that users get."""


@mail.command()
@click.argument("name", required=False, type=click.Choice(sorted(NAMES)))
@click.option("--language", help="As for a user who prefers it, such as de-AT. [default: every language]")
@click.option("--html", "part", flag_value="html", help="Print the HTML alone, for a browser.")
@click.option("--text", "part", flag_value="text", help="Print the text alone.")
@common_options
def preview(invocation: Invocation, name: str | None, language: str | None, part: str | None) -> None:
    """Print each e-mail, or the one of this NAME, as it would be sent, with an example of a token. Nothing is sent.

    Changed templates are shown at once; a running service takes them over with a reload (SIGHUP). Exit code 2, with
    file and line, if one cannot be used.
    """
    settings = invocation.launch().settings
    try:
        templates = MailTemplates.load(settings)
    except TemplateFault as fault:
        end(str(fault), USAGE)
    names = sorted(NAMES) if name is None else [cast(MailName, name)]
    sender = settings.smtp.sender or NOBODY
    views = [view for one in names for view in _views(templates, one, language, sender)]
    if part is None:
        invocation.show(views, *"\n\n\n".join(map(_shown, views)).splitlines())
        return
    for view in views:
        if view[part] is None:
            end(
                f"{view['name']} has no HTML in {view['language']}: there is none beside {view['file']}",
                FAILED,
            )
    bodies = [view[part] or "" for view in views]
    invocation.show(bodies, *"\n".join(bodies).splitlines())


def _views(templates: MailTemplates, name: MailName, language: str | None, sender: str) -> Iterator[_View]:
    """An e-mail in every language, or in the one that a user who prefers ``language`` gets."""
    chosen = templates.languages(name) if language is None else [templates.language_for(name, language)]
    for one in chosen:
        composed = templates.example(name, one)
        yield {
            "name": name,
            "language": one,
            "file": templates.file_of(name, one),
            "from": sender,
            "to": composed.recipient,
            "subject": composed.subject,
            "text": composed.text,
            "html": composed.html,
        }


def _shown(view: _View) -> str:
    html = "without HTML" if view["html"] is None else "with HTML (--html)"
    return (
        f"{view['name']} in {view['language']}, {html}: {view['file']}\n\n"
        f"From: {view['from']}\nTo: {view['to']}\nSubject: {view['subject']}\n\n"
        f"{(view['text'] or '').rstrip()}"
    )


@mail.command("templates")
@click.argument("folder", type=NonEmptyPath(path_type=Path))
@common_options
def write_templates(invocation: Invocation, folder: Path) -> None:
    """Write the built-in templates to FOLDER, a new one, as a start for your own in smtp.templates_dir."""
    try:
        shutil.copytree(BUILT_IN, folder)
    except OSError as fault:
        end(f"{folder}: {fault.strerror}", FAILED)
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    invocation.show({"folder": str(folder), "files": files}, *(f"{folder}/{one}" for one in files))
