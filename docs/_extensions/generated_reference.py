"""The reference that is made from the program itself: settings, error codes, metrics, commands and endpoints.

Each directive writes reStructuredText and has it parsed. Each entry is an object that can be linked to
(``:setting:``, ``:error:``, ``:metric:``, ``:command:``); ``linked_names`` does so wherever a page names one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import attrs
import click
from attrs import define, field, frozen
from docutils import nodes
from prometheus_client.metrics_core import Metric
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from twisted.internet import reactor

from project_service.application import INTRODUCTION, assemble
from project_service.auth.tokens import load_or_create_keys
from project_service.cli import main
from project_service.http import openapi
from project_service.http.health import Health
from project_service.http.metrics import Metrics
from project_service.http.routing import Router
from project_service.settings.model import (
    INNER_SECTIONS,
    SECTIONS,
    Secret,
    Settings,
    Stage,
    StageDatabase,
)

SAMPLE = Path(__file__).parents[2] / "etc" / "project-service.toml"
STAGES = "stages.STAGE.databases.NAME"


def escaped(text: str) -> str:
    """Plain text as reStructuredText. Literals are what is in backticks, and names of settings and pages."""
    known = (re.escape(name) for name in setting_names() if "." in name)
    names = "|".join([*known, r"docs/\w+\.rst", r"\[[a-z]+\](?: [a-z_]+)?", r"PROJECT_SERVICE__\w+"])
    pieces = re.split(rf"`([^`]+)`|(?<![\w./`])({names})(?![\w/])", text)
    # Of each three one is plain text, and one of the others is what was matched.
    plain = (re.sub(r"([\\*|_<>]|:(?=\S))", r"\\\1", one) for one in pieces[::3])
    # The escaped blanks let anything stand beside a literal.
    matched = (f"\\ ``{quoted or name}``\\ " for quoted, name in zip(pieces[1::3], pieces[2::3], strict=True))
    return "".join(piece for pair in zip_longest(plain, matched, fillvalue="") for piece in pair)


def indented(text: str) -> str:
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())


# Settings


@frozen
class Group:
    """Settings that one comment of the sample explains: each name with the value that the sample shows."""

    comment: str
    settings: tuple[tuple[str, str], ...]


@frozen
class Section:
    name: str
    comment: str
    groups: tuple[Group, ...]


@cache
def sample() -> tuple[str, tuple[Section, ...]]:
    """The introduction and the sections of the commented sample of the configuration."""
    introduction, *rest = re.split(r"\n\n(?=(?:#.*\n)*#?\[)", SAMPLE.read_text("utf-8"))
    return _comment(introduction.splitlines()), tuple(map(_section, rest))


def _comment(lines: list[str]) -> str:
    return "\n".join(line.lstrip("#").removeprefix(" ") for line in lines)


def _section(text: str) -> Section:
    lines = text.splitlines()
    head = next(at for at, line in enumerate(lines) if re.match(r"#?\[", line))
    name = lines[head].strip("#[]")
    groups: list[Group] = []
    comment: list[str] = []
    settings: list[tuple[str, str]] = []
    for line in lines[head + 1 :]:
        if setting := re.fullmatch(r"#(\w+) = (.*)", line):
            settings.append((setting[1], setting[2]))
            continue
        if settings:
            groups.append(Group(_comment(comment), tuple(settings)))
            comment, settings = [], []
        comment.append(line)
    groups.append(Group(_comment(comment), tuple(settings)))
    prefix = STAGES if name.startswith("stages.") else name
    if f"{name.rpartition('.')[0]}.NAME" in INNER_SECTIONS:
        prefix = f"{name.rpartition('.')[0]}.NAME"
    return Section(prefix, _comment(lines[:head]), tuple(groups))


def _model(section: str) -> type:
    return _models()[section]


def _models() -> Mapping[str, type]:
    return {**SECTIONS, **INNER_SECTIONS, STAGES: StageDatabase}


@cache
def setting_names() -> Mapping[str, str]:
    """The full name of each setting, by every name under which pages know it."""
    names = {}
    for section, model in _models().items():
        for one in attrs.fields(model):
            if "kind" not in one.metadata:
                continue  # a section within this one
            names[f"{section}.{one.name}"] = f"{section}.{one.name}"
    bare = {one.name for model in SECTIONS.values() for one in attrs.fields(model)}
    for one in attrs.fields(StageDatabase):
        # Alone, a name is that of a database's setting if no other section has it and no role bears it.
        if "_" in one.name and one.name not in bare and one.default != one.name:
            names[one.name] = f"{STAGES}.{one.name}"
    return names


def _settings() -> str:
    introduction, sections = sample()
    lines = [escaped(introduction).partition("\n\n")[2], ""]
    for section in sections:
        of_section = "stages" if section.name == STAGES else section.name.removesuffix(".NAME")
        title, label = f"[{section.name}]", f".. _settings-{of_section}:"
        lines += ["", label, "", title, "-" * len(title), "", escaped(section.comment), ""]
        for group in section.groups:
            lines += _group(section, group)
    return "\n".join(lines)


def _group(section: Section, group: Group) -> Iterator[str]:
    """The entries of the settings that have a comment in common."""
    fields = attrs.fields_dict(_model(section.name))
    heads, remarks = [], []
    for name, value in group.settings:
        has_default = fields[name].default is not None
        heads.append(f"{section.name}.{name}" + (f" = {value}" if has_default else ""))
        if not has_default:
            remarks.append(f"For example ``{name} = {value}``")
    comment = re.sub(r"\s*\bSIGHUP\s*$", "", group.comment)
    if comment != group.comment or any(fields[name].metadata["reloads"] for name, _ in group.settings):
        remarks.append("Applied by a reload (SIGHUP)")
    yield ".. setting:: " + "\n             ".join(heads)
    yield ""
    yield indented(escaped(comment))
    yield ""
    yield from (f"   | {remark}" for remark in remarks)
    yield ""


# Endpoints and error codes


@cache
def description() -> Mapping[str, Any]:
    """``/openapi.json`` of a service with one database of the table API. Nothing is connected to."""
    settings = attrs.evolve(
        Settings().with_database("postgresql:///"),
        store=attrs.evolve(
            Settings().store, endpoint_url="http://store", access_key_id="-", secret_access_key=Secret("-")
        ),
        stages={"dev": Stage({"main": StageDatabase()})},
    )
    router = Router()
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "jwt-keys.json"
        load_or_create_keys(keys, "ES256")
        settings = attrs.evolve(settings, auth=attrs.evolve(settings.auth, jwt_keys_file=str(keys)))
        for part in assemble(reactor, settings, 1).mounted:
            part.mount(router)
    Health({}, Metrics(), reactor).mount(router)
    openapi.OpenApi("", INTRODUCTION).mount(router)
    made: dict[str, Any] = openapi.document(router.routes, "", INTRODUCTION)
    return made


@define
class Code:
    """An error code: its statuses, the sentences that come with it, and the operations that may answer with it."""

    statuses: set[str] = field(factory=set)
    messages: dict[str, None] = field(factory=dict)
    operations: dict[str, None] = field(factory=dict)


def operations() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Each operation with its method and path. HEAD is left out: it is GET without a body."""
    for path, methods in description()["paths"].items():
        for method, operation in methods.items():
            if method != "head":
                yield method.upper(), path, operation


@cache
def error_codes() -> Mapping[str, Code]:
    codes: dict[str, Code] = {}
    for method, path, operation in operations():
        for status, response in operation["responses"].items():
            for code, message in _errors(response):
                entry = codes.setdefault(code, Code())
                entry.statuses.add(status)
                entry.messages[message] = None
                entry.operations[f"{method} {path}"] = None
    return dict(sorted(codes.items()))


def _errors(response: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The codes and messages of a response, which its description lists."""
    return re.findall(r"^- `([^`]+)`: (.*)$", _resolved(response)["description"], re.M)


def _resolved(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is referred to, if it is among the components."""
    if "$ref" not in one:
        return one
    kind, name = one["$ref"].split("/")[-2:]
    there: Mapping[str, Any] = description()["components"][kind][name]
    return there


# A code of more operations than this is one of a whole part, or of all; to list them would say nothing.
EVERYWHERE = 5


def _error_codes() -> str:
    lines = []
    for code, entry in error_codes().items():
        lines += [f".. error:: {' '.join(sorted(entry.statuses))} {code}", ""]
        lines += [f"   | {escaped(message)}" for message in entry.messages]
        if len(entry.operations) <= EVERYWHERE:
            lines.append("   | Of " + ", ".join(f"``{operation}``" for operation in entry.operations))
        lines.append("")
    return "\n".join(lines)


CALLERS = {"serviceKey": "service key", "projectKey": "project key", "userToken": "user token"}


def _endpoints() -> str:
    lines = []
    for tag in description()["tags"]:
        title = tag["name"].capitalize()
        lines += ["", title, "-" * len(title), ""]
        for method, path, operation in operations():
            if tag["name"] in operation["tags"]:
                lines += _endpoint(method, path, operation)
    return "\n".join(lines)


def _endpoint(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f".. endpoint:: {method} {path}"
    yield ""
    yield f"   {escaped(operation['summary'])}."
    yield ""
    needs = [" and ".join(CALLERS[one] for one in way if one in CALLERS) for way in operation["security"]]
    needs = list(dict.fromkeys(one for one in needs if one))
    if needs:
        yield f"   :Needs: {', or '.join(needs)}"
    parameters = [_resolved(one) for one in operation.get("parameters", [])]
    parameters = [one for one in parameters if one["in"] != "path"]
    if parameters:
        yield "   :Takes: " + ", ".join(f"``{one['name']}``" for one in parameters)
    if "requestBody" in operation:
        yield "   :Body: " + ", ".join(f"``{kind}``" for kind in operation["requestBody"]["content"])
    answers = [status for status, response in operation["responses"].items() if not _errors(response)]
    yield "   :Answers: " + ", ".join(answers)
    refusals = {code: status for status, one in operation["responses"].items() for code, _ in _errors(one)}
    particular = [code for code in refusals if len(error_codes()[code].operations) <= EVERYWHERE]
    if particular:
        yield "   :Errors: " + ", ".join(f"{refusals[code]} ``{code}``" for code in particular)
    yield ""


# Metrics


@cache
def metric_names() -> frozenset[str]:
    return frozenset(_metric_name(one) for one in Metrics().registry.collect())


def _metric_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else str(metric.name)


def _metrics() -> str:
    lines = []
    for metric in Metrics().registry.collect():
        labels = getattr(Metrics().registry._names_to_collectors[metric.name], "_labelnames", ())
        lines += [f".. metric:: {_metric_name(metric)}", "", f"   {escaped(metric.documentation)}", ""]
        by = ", by " + ", ".join(f"``{one}``" for one in labels) if labels else ""
        lines += [f"   | {metric.type.capitalize()}{by}", ""]
    return "\n".join(lines)


# Commands


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """``command`` and all below it, with their full names."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


@cache
def command_names() -> frozenset[str]:
    return frozenset(path for path, _ in commands(main, "project-service"))


# Those of every command, which the page says itself.
COMMON_OPTIONS = {"config", "data_dir", "json", "help", "version"}


def _commands() -> str:
    lines = []
    for path, command in commands(main, "project-service"):
        context = click.Context(command, info_name=path)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f".. command:: {path} {usage}".rstrip(), "", indented(_help(command)), ""]
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and record[1] and parameter.name not in COMMON_OPTIONS:
                lines.append(f"   | ``{record[0]}`` - {escaped(record[1])}")
        lines.append("")
    return "\n".join(lines)


def _help(command: click.Command) -> str:
    text = (command.help or "").partition("\f")[0].strip()
    return "\n\n".join(escaped(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


# Sphinx


class _Generated(SphinxDirective):
    make: ClassVar[Any]

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(SAMPLE))
        return self.parse_text_to_nodes(type(self).make(), allow_section_headings=True)


class SettingsReference(_Generated):
    make = staticmethod(_settings)


class ErrorCodesReference(_Generated):
    make = staticmethod(_error_codes)


class EndpointsReference(_Generated):
    make = staticmethod(_endpoints)


class MetricsReference(_Generated):
    make = staticmethod(_metrics)


class CommandsReference(_Generated):
    make = staticmethod(_commands)


def _named(node: addnodes.desc_signature, before: str, name: str, after: str) -> str:
    """Fills the head of an entry, of which ``name`` is what it is linked by."""
    if before:
        node += addnodes.desc_annotation("", before + " ")
    node += addnodes.desc_name("", name)
    if after:
        node += addnodes.desc_annotation("", after)
    return name


def _setting_head(env: BuildEnvironment, text: str, node: addnodes.desc_signature) -> str:
    name, _, value = text.partition(" = ")
    return _named(node, "", name, f" = {value}" if value else "")


def _error_head(env: BuildEnvironment, text: str, node: addnodes.desc_signature) -> str:
    statuses, _, code = text.rpartition(" ")
    return _named(node, statuses, code, "")


def _command_head(env: BuildEnvironment, text: str, node: addnodes.desc_signature) -> str:
    words = text.split(" ")
    known = next(at for at in range(len(words), 0, -1) if " ".join(words[:at]) in command_names())
    rest = " ".join(words[known:])
    return _named(node, "", " ".join(words[:known]), f" {rest}" if rest else "")


def _plain_head(env: BuildEnvironment, text: str, node: addnodes.desc_signature) -> str:
    return _named(node, "", text, "")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_object_type("setting", "setting", "%s (setting)", _setting_head, objname="setting")
    app.add_object_type("error", "error", "%s (error)", _error_head, objname="error code")
    app.add_object_type("metric", "metric", "%s (metric)", _plain_head, objname="metric")
    app.add_object_type("command", "command", "%s (command)", _command_head, objname="command")
    app.add_object_type("endpoint", "endpoint", "%s (endpoint)", _plain_head, objname="endpoint")
    app.add_directive("settings-reference", SettingsReference)
    app.add_directive("error-codes-reference", ErrorCodesReference)
    app.add_directive("endpoints-reference", EndpointsReference)
    app.add_directive("metrics-reference", MetricsReference)
    app.add_directive("commands-reference", CommandsReference)
    return {"parallel_read_safe": True}
