"""Makes links of names. A page writes ``server.listen``, ``docs/auth.rst``, ``email_taken`` or
``project-service check`` as a literal, as it would without Sphinx, so that it can be read on a code host as well.
Here the literal becomes a link to the page, or to the entry in the reference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.transforms.parts import Contents
from generated_reference import command_names, error_codes, metric_names, setting_names
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.logging import getLogger

from project_service.settings.model import SECTIONS

_log = getLogger(__name__)

# Files outside this folder that have a page in the site.
PAGES = {
    "README.rst": "readme",
    "CONTRIBUTING.rst": "project/contributing",
    "SECURITY.rst": "project/security",
    "CHANGELOG.rst": "project/changelog",
    "tests/README.rst": "project/tests",
}
# Files without a page of their own, and what the site has instead.
INSTEAD = {
    "etc/project-service.toml": "reference/settings",
    "/openapi.json": "reference/endpoints",
    "/metrics": "reference/metrics",
    "project-service --help": "reference/commands",
}
SECTION = re.compile(rf"\[({'|'.join(SECTIONS)}|stages)(?:\..*)?\]")
IN_SECTION = re.compile(r"\[(\w+)\] (\w+)")
ENVIRONMENT = re.compile(r"PROJECT_SERVICE__([A-Z]+)__([A-Z_]+)")
COMMAND = re.compile(r"project-service(?: [a-z-]+)+")
# What can only be the name of a page, a setting or a command. (``auth.users`` may be a table, ``store.py`` a file.)
SURELY = re.compile(
    r"[\w/-]+\.rst|(?:server|smtp)\.[a-z_]+|database\.[a-z]+_\w+|project-service [a-z].*", re.DOTALL
)


def target(text: str, pages: set[str]) -> tuple[str, str] | None:
    """The kind and the name of what a literal names: a ``doc`` among ``pages``, or an entry of the reference."""
    page = PAGES.get(text) or re.sub(r"^docs/|\.rst$", "", text)
    if text.endswith(".rst") and page in pages:
        return "doc", page
    if text in INSTEAD:
        return "doc", INSTEAD[text]
    if section := SECTION.fullmatch(text):
        return "ref", f"settings-{section[1]}"
    by_kind = {
        "error": text if text in error_codes() else None,
        "metric": text if text in metric_names() else None,
        "command": _command(text),
        "setting": _setting(text),
    }
    return next(((kind, name) for kind, name in by_kind.items() if name), None)


def _command(text: str) -> str | None:
    """The longest beginning of ``text`` that is a command."""
    words = text.split() if COMMAND.match(text) else []
    beginnings = (" ".join(words[:count]) for count in range(len(words), 1, -1))
    return next((one for one in beginnings if one in command_names()), None)


def _setting(text: str) -> str | None:
    """The full name of a setting that is written with its section, in brackets or in the environment, or alone where
    that is clear; a value after ``=`` is ignored."""
    text = re.sub(r" = .*", "", text, flags=re.DOTALL)
    if section := IN_SECTION.fullmatch(text):
        text = ".".join(section.groups())
    elif variable := ENVIRONMENT.match(text):
        text = ".".join(variable.groups()).lower()
    full: str | None = setting_names().get(text)
    return full


class LinkNames(SphinxTransform):
    """Literals that name something become references to it; a name of nothing is a warning."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        pages = set(self.env.found_docs)
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, nodes.title | nodes.reference | addnodes.pending_xref):
                continue
            named = target(literal.astext(), pages)
            if named is not None:
                literal.replace_self(self.reference(literal, *named))
            elif SURELY.fullmatch(literal.astext()):
                _log.warning("there is no %s", literal.astext(), location=literal)

    def reference(self, literal: nodes.literal, kind: str, name: str) -> addnodes.pending_xref:
        page = kind == "doc" and literal.astext().endswith(".rst")
        xref = addnodes.pending_xref(
            "",
            # Where a page is named, its title is shown.
            nodes.inline("", literal.astext()) if page else literal.deepcopy(),
            refdoc=self.env.docname,
            refdomain="std",
            reftype=kind,
            reftarget=f"/{name}" if kind == "doc" else name,
            refexplicit=not page,
            refwarn=True,
        )
        xref.source, xref.line = literal.source, literal.line
        return xref


class NoContents(SphinxTransform):
    """Takes the lists of contents out of the pages, as the theme shows one beside each."""

    default_priority = Contents.default_priority + 1

    def apply(self, **kwargs: Any) -> None:
        for topic in list(self.document.findall(nodes.topic)):
            if "contents" in topic["classes"]:
                topic.parent.remove(topic)
        for title in self.document.findall(nodes.title):
            title.attributes.pop("refid", None)  # back to the list


def pictures_of_readme(app: Sphinx, path: Path, docname: str, content: list[str]) -> None:
    """The README names pictures from the top folder, and a page that includes it is in the one below."""
    content[0] = content[0].replace(".. image:: docs/", ".. image:: ")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("include-read", pictures_of_readme)
    app.add_transform(LinkNames)
    app.add_transform(NoContents)
    return {"parallel_read_safe": True}
