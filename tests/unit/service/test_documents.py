"""The site of the documentation is made without a warning and its links lead somewhere. The documentation agrees with
the program: error codes, metrics, commands, settings, timeouts. No news fragment is left out."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from configparser import ConfigParser
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import ClassVar

import attrs
import click
from docutils.core import publish_doctree
from sphinx.search.en import SearchEnglish
from sphinx.util.inventory import InventoryFile
from twisted.trial.unittest import TestCase

from project_service.auth.sessions import SCOPES
from project_service.auth.values import ANSWERED
from project_service.cli import COMMANDS, main
from project_service.http.metrics import Metrics
from project_service.settings import model
from project_service.settings.model import Settings
from project_service.settings.reading import ALL_RESOURCES, Resource, Source
from project_service.workers.supervisor import STOP_MARGIN_SECONDS

ROOT = Path(__file__).parents[3]
NEWS = ROOT / "newsfragments"
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
SECTIONS = {section["path"] for section in TOWNCRIER["section"]}
FOLDERS = (ROOT, ROOT / "tests", *(NEWS / section for section in SECTIONS))
# From its least level on: a line that looks like an item of a list is only that.
SETTINGS = {"report_level": 1, "halt_level": 5, "_disable_config": True}


def remarks(text: str, path: Path) -> str:
    """The warnings of docutils about a page, with file and line."""
    warnings = StringIO()
    publish_doctree(text, str(path), settings_overrides={**SETTINGS, "warning_stream": warnings})
    return warnings.getvalue()


def astray(fragments: Iterable[PurePath]) -> list[str]:
    """Those that towncrier would leave out, or refuse, of paths relative to the folder of the news fragments."""
    types = "|".join(type_["directory"] for type_ in TOWNCRIER["type"])
    name = re.compile(rf"[^.]+\.({types})\.rst")
    return [
        str(fragment)
        for fragment in fragments
        if str(fragment.parent) not in SECTIONS or not name.fullmatch(fragment.name)
    ]


class Page(HTMLParser):
    """The links of a page, and the names to which links can lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.names.add(given.get("id") or "")
        if tag == "a" and (link := given.get("href")) and not link.startswith(("http:", "https:", "mailto:")):
            self.links.append(link)


def made_site(source: Path, target: Path) -> tuple[int, str]:
    """Makes a site as ``make docs`` does; the exit code and the warnings."""
    options = ["-b", "html", "-n", "-W", "--keep-going", "-q", "-d", f"{target}.doctrees"]
    options += ["-c", str(ROOT / "docs")]
    made = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, source, target],
        capture_output=True,
        text=True,
        check=False,  # what it printed says more than the status
    )
    return made.returncode, made.stderr


class Search:
    """The search of the site: the terms of its index, looked up and scored as Sphinx's ``searchtools.js`` does it."""

    def __init__(self, text: str) -> None:
        self.index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
        self.language = SearchEnglish({})

    def first_pages(self, text: str) -> list[str]:
        """The pages that have all words of ``text``, up to the third best score."""
        of_words = [
            self.scores(self.language.stem(word))
            for word in re.findall(r"\w+", text.lower())
            if word not in self.language.stopwords
        ]
        pages = set.intersection(*(set(scores) for scores in of_words))
        total = {page: sum(scores[page] for scores in of_words) for page in pages}
        least = sorted(total.values(), reverse=True)[:3][-1:]
        return [self.index["docnames"][page] for page in pages if [total[page]] >= least]

    def scores(self, word: str) -> dict[int, int]:
        found: dict[int, int] = {}
        for kind, whole, part in (("terms", 5, 2), ("titleterms", 15, 7)):
            terms = self.index[kind]
            for term in [word] if word in terms else [term for term in terms if word in term]:
                pages = terms[term] if isinstance(terms[term], list) else [terms[term]]
                found |= dict.fromkeys(pages, whole if term == word else part)
        return found


# What people look for, by the page that answers it.
SEARCHED = {
    "howto/thumbnails": ("thumbnail", "resize", "avatar", "heic"),
    "howto/live-updates": ("realtime", "subscribe", "websocket", "push notifications"),
    "howto/sign-in": ("oauth", "google login", "magic link", "sso", "2fa"),
    "howto/sign-in-code": ("magic link", "otp", "passwordless"),
    "howto/guests": ("anonymous users", "guest"),
    "howto/invites": ("invite user", "closed beta"),
    "howto/forgotten-password": ("forgot password", "reset password supabase"),
    "howto/change-email": ("change email",),
    "howto/job-queue": ("cron", "webhook", "edge functions"),
    "howto/teams": ("multi tenant", "invite"),
    "howto/import-export": ("csv export", "excel"),
    "howto/search": ("full text search", "embeddings"),
    "howto/containers": ("docker", "kubernetes"),
    "howto/public-picture": ("cdn",),
    "howto/large-files": ("resume upload",),
    "clients": ("drag and drop", "react", "flutter"),
    "tables": ("pagination", "graphql", "upsert"),
    "storage": ("minio", "presigned url"),
    "auth": ("gdpr", "jwt"),
    "operations": ("backup", "healthcheck", "prometheus"),
    "schema": ("migrations", "seed"),
    "explanations/supabase": ("coming from supabase", "studio"),
    "howto/photo-app": ("photo album", "gallery"),
    "reference/endpoints": ("swagger", "postman"),
}


class Site(TestCase):
    """``make docs``. The name that a link has in a page comes from ``docs/_extensions/linked_names.py``."""

    folder: ClassVar[TemporaryDirectory[str]]
    site: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.site = Path(cls.folder.name) / "site"
        status, warnings = made_site(ROOT / "docs", cls.site)
        assert (status, warnings) == (0, ""), warnings

    def page(self, name: str) -> str:
        return (self.site / name).read_text("utf-8")

    def test_every_link_within_it_leads_to_a_page_and_to_a_name_there(self) -> None:
        page = cache(Page)
        broken = []
        for path in sorted(self.site.rglob("*.html")):
            for link in page(path).links:
                file, _, name = link.partition("#")
                target = (path.parent / file).resolve() if file else path
                if not target.is_file() or (target.suffix == ".html" and name not in page(target).names):
                    broken.append(f"{path.relative_to(self.site)}: {link}")
        self.assertEqual(broken, [])

    def test_names_in_pages_are_links(self) -> None:
        auth = self.page("auth.html")
        self.assertIn('href="reference/settings.html#setting-auth.allow_signup"', auth)
        self.assertIn('href="reference/error-codes.html#error-email_taken"', auth)
        self.assertIn('href="storage.html"', auth)
        self.assertIn('href="reference/settings.html#settings-smtp"', auth)
        operations = self.page("operations.html")
        self.assertIn('href="reference/commands.html#command-project-service-check"', operations)
        self.assertIn('href="reference/metrics.html#metric-project_service_requests_waiting"', operations)
        self.assertIn('setting-stages.STAGE.databases.NAME.max_rows"', self.page("tables.html"))

    def test_a_name_of_nothing_is_a_warning(self) -> None:
        source = Path(self.folder.name) / "source"
        source.mkdir()
        wrong = ("server.lisen", "docs/nowhere.rst", "project-service chek")
        names = (*wrong, "server.listen", "auth.users", "project-service check")
        page = "\n\n".join(f"``{name}``" for name in names)
        (source / "index.rst").write_text(f"A page\n======\n\n{page}\n")
        status, warnings = made_site(source, Path(self.folder.name) / "other")
        self.assertEqual(status, 1)
        self.assertEqual(tuple(re.findall(r"there is no (.*)$", warnings, re.MULTILINE)), wrong)

    def test_the_reference_has_every_setting_and_command(self) -> None:
        with (self.site / "objects.inv").open("rb") as file:
            inventory = InventoryFile.load(file, "", lambda base, path: path)
        settings = {
            f"{section}.{one.name}"
            for section, kind in {**model.SECTIONS, **model.INNER_SECTIONS}.items()
            for one in attrs.fields(kind)
            if "kind" in one.metadata
        }
        settings |= {f"stages.STAGE.databases.NAME.{one.name}" for one in attrs.fields(model.StageDatabase)}
        self.assertEqual(set(inventory["std:setting"]), settings)
        self.assertLessEqual({f"project-service {name}" for name in COMMANDS}, set(inventory["std:command"]))

    def test_a_search_finds_pages_and_entries(self) -> None:
        index = self.page("searchindex.js")
        self.assertIn("server.listen", index)
        self.assertIn("email_taken", index)

    def test_words_that_people_search_lead_to_the_page_about_them(self) -> None:
        """Also where the service has no such thing: then the page says so, and what to do instead."""
        search = Search(self.page("searchindex.js"))
        for page, texts in SEARCHED.items():
            for text in texts:
                self.assertIn(page, search.first_pages(text), text)
        self.assertEqual(search.first_pages("nonexistentword"), [])


class Make(TestCase):
    def test_the_site_is_made_in_an_environment_of_its_own(self) -> None:
        """``make run`` may be running in the other one."""
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # Those of a make that runs the tests would be this one's as well.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", "--dry-run", "docs", f"VENV={folder.name}/env"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        used = set(re.findall(rf"{re.escape(folder.name)}/([\w-]+)", done.stdout))
        self.assertIn("pip install", done.stdout)
        self.assertIn("-m sphinx", done.stdout)
        self.assertEqual(used, {"env-docs"})


class Documents(TestCase):
    def test_every_page_outside_the_site_is_read_without_a_warning(self) -> None:
        pages = [page for folder in FOLDERS for page in sorted(folder.glob("*.rst"))]
        for name in (
            "README.rst",
            "SECURITY.rst",
            "CONTRIBUTING.rst",
            "tests/README.rst",
        ):
            self.assertIn(ROOT / name, pages)
        self.assertEqual("".join(remarks(page.read_text("utf-8"), page) for page in pages), "")

    def test_the_test_itself_notices_common_mistakes(self) -> None:
        slips = {
            "A longer title\n====\n": "Title underline too short",
            ":ref:`elsewhere`\n": 'Unknown interpreted text role "ref"',
            "a `link_ that is open\n": "Unknown target name",
            ".. code-block:: nonsense\n\n   x\n": "No Pygments lexer found",
            "204. 404 otherwise.\n": "Enumerated list",
        }
        for text, remark in slips.items():
            self.assertIn(remark, remarks(text, ROOT / "docs" / "slip.rst"))


class Walks(TestCase):
    def test_every_file_that_a_walk_names_exists(self) -> None:
        page = (ROOT / "CONTRIBUTING.rst").read_text("utf-8")
        walks = page[page.index("Walks through the files\n---") : page.index("Documentation\n---")]
        named = set(re.findall(r"``((?:project_service|docs|tests|etc|benchmarks)/[\w./]*)``", walks))
        self.assertGreater(len(named), 20)
        self.assertEqual({name for name in named if not (ROOT / name).exists()}, set())


class OnceOnly(TestCase):
    def test_how_long_an_upload_may_take_stands_on_one_page(self) -> None:
        docs = ROOT / "docs"
        texts = {str(page.relative_to(docs)): page.read_text("utf-8") for page in docs.rglob("*.rst")}
        for name in ("resumable_seconds", "Upload-Expires"):
            counts = {page: text.count(name) for page, text in texts.items() if name in text}
            self.assertEqual(counts, {"storage.rst": 1})
        rule = re.compile(r"How\s+long\s+an\s+upload\s+may\s+take")
        referring = {page for page, text in texts.items() if rule.search(text)} - {"storage.rst"}
        guides = {"howto/large-files.rst", "howto/resumable-uploads.rst"}
        self.assertEqual(referring, {*guides, "operations.rst", "explanations/overload.rst"})


class News(TestCase):
    def test_every_fragment_is_in_a_section_and_of_a_known_type(self) -> None:
        template = ROOT / TOWNCRIER["template"]
        files = [path for path in sorted(NEWS.rglob("*")) if path.is_file() and path != template]
        self.assertEqual(astray(path.relative_to(NEWS) for path in files), [])

    def test_fragments_that_would_be_left_out_are_found(self) -> None:
        wrong = [
            "a.bugfix.rst",
            "nowhere/a.bugfix.rst",
            "http/more/a.bugfix.rst",
            "http/a.fix.rst",
            "http/a.bugfix",
        ]
        right = ["http/a.bugfix.rst", "auth/a.security.rst"]
        self.assertEqual(astray(PurePath(path) for path in wrong + right), wrong)


# The module that raises them, and the page that lists them beside the shared ones.
PAGES = {
    "errors.py": "errors",
    "http/health.py": "errors",
    "auth": "auth",
    "storage": "storage",
    "supabase": "supabase",
}
MAKERS = ("ApiError", "_challenged", "_refused")


def codes(path: Path) -> set[str]:
    """The literal codes that are given to ``ApiError`` and its shorthands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in MAKERS:
            texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            found.update(text for text in texts if isinstance(text, str) and " " not in text)
    return found


class ErrorCodes(TestCase):
    def test_each_code_is_documented(self) -> None:
        shared = (ROOT / "docs" / "errors.rst").read_text("utf-8")
        seen: set[str] = set()
        for name, page in PAGES.items():
            path = ROOT / "project_service" / name
            text = shared + (ROOT / "docs" / f"{page}.rst").read_text("utf-8")
            for file in path.rglob("*.py") if path.is_dir() else [path]:
                for code in codes(file):
                    seen.add(code)
                    self.assertIn(f"``{code}``", text, f"{file.name}: {code}")
        self.assertLessEqual({"not_found", "email_taken", "object_not_found", "database_unavailable"}, seen)


def actions() -> set[str]:
    """The literal actions of entries of the audit."""
    found = {action for _, action in ANSWERED.values()}
    for file in (ROOT / "project_service").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                at = {
                    "Event": node.args[1:2],
                    "_event": node.args[:1],
                    "user_event": node.args[:1],
                    "by_service": node.args[2:3],
                    "by": node.args[:1],
                }.get(name)
                at = at or [one.value for one in node.keywords if one.arg == "action"]
            else:
                at = _assigned(node, "action")
            literals = [one for part in at for one in ast.walk(part) if isinstance(one, ast.Constant)]
            found.update(one.value for one in literals if isinstance(one.value, str))
    for sql in (ROOT / "project_service" / "database" / "sql" / "auth").glob("*.sql"):
        for call in re.findall(r"record_change\(\$1, (.*)\);", sql.read_text("utf-8")):
            found.update(re.findall(r"'(\w+)'", call))
    return found


def _assigned(node: ast.AST, name: str) -> list[ast.expr]:
    """What the statement assigns to the name, alone or as one of several."""
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name) and target.id == name:
        return [value]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        names = [getattr(one, "id", "") for one in target.elts]
        return [value.elts[names.index(name)]] if name in names else []
    return []


class Audit(TestCase):
    def test_each_action_is_documented_and_no_other(self) -> None:
        page = (ROOT / "docs" / "auth.rst").read_text("utf-8")
        _, _, table = page[page.index("The audit\n") :].partition("=====\n")
        listed = set(re.findall(r"``([\w.]+)``", "\n".join(line[:54] for line in table.splitlines())))
        made = actions() | {f"logout_{scope}" for scope in SCOPES} | {"refresh", "mail_"}
        made -= {"logout_"}
        self.assertGreater(len(made), 30)
        self.assertEqual(listed, made)


UNIT = Path(__file__).parents[3] / "etc" / "project-service.service"
DOCUMENT = (Path(__file__).parents[3] / "docs" / "operations.rst").read_text("utf-8")


class Documented(TestCase):
    def test_every_metric_is_documented_and_no_other(self) -> None:
        shown = set(re.findall(r"^# TYPE (\S+) ", Metrics().exposition().decode(), re.MULTILINE))
        # When a counter began is the library's own addition, and says nothing of the service.
        shown = {name for name in shown if not name.endswith("_created")}
        self.assertGreater(len(shown), 4)
        self.assertEqual(set(re.findall(r"^``(project_service_\w+)``", DOCUMENT, re.MULTILINE)), shown)

    def test_every_command_that_is_named_exists(self) -> None:
        named = set(re.findall(r"project-service (storage|keys|jwt-keys|user|bucket) ([a-z]+)", DOCUMENT))
        self.assertGreater(len(named), 3)
        for noun, verb in named:
            assert isinstance(main, click.Group)
            group = main.get_command(click.Context(main), noun)
            assert isinstance(group, click.Group)
            self.assertIn(verb, group.commands)

    def test_the_configuration_that_is_shown_is_valid(self) -> None:
        """The secrets come from the environment variables that the page shows."""
        settings = self.shown("configuration")
        self.assertEqual(set(settings.stages), {"prod"})
        self.assertEqual(settings.server.public_url, "https://project.example.com")

    def test_the_settings_for_links_of_emails_are_valid(self) -> None:
        settings = self.shown("links", "mail server")
        self.assertEqual(settings.smtp.host, "smtp.example.com")
        self.assertEqual(settings.auth.site_url, "https://www.example.com/")

    def shown(self, name: str, *needed: Resource) -> Settings:
        """The settings in the block of that name, for everything or for what is ``needed``."""
        shown = re.search(rf"\.\. code-block:: toml\n   :name: {name}\n\n((?:   .*\n|\n)+)", DOCUMENT)
        secrets = dict(re.findall(r"^    (PROJECT_SERVICE__\w+)='(.*)'$", DOCUMENT, re.MULTILINE))
        assert shown is not None
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name) / "project-service.toml"
        config.write_text(dedent(shown[1]))
        environment = {name: value.replace("…", "x") for name, value in secrets.items()}
        return Source(config).read(environment, needed or ALL_RESOURCES)

    def test_every_setting_that_is_named_exists(self) -> None:
        settings = Settings()
        named = re.findall(r"``(server|database|store|auth|storage)\.(\w+)``", DOCUMENT)
        self.assertGreater(len(named), 5)
        for section, name in named:
            self.assertTrue(hasattr(getattr(settings, section), name), f"{section}.{name}")


class UnitFile(TestCase):
    def setUp(self) -> None:
        # systemd allows a key twice; only the last is of interest here.
        self.unit = ConfigParser(strict=False, interpolation=None)
        self.unit.optionxform = str  # type: ignore[assignment, method-assign]  # configparser's documented way
        self.unit.read(UNIT)

    def test_the_stop_timeout_covers_the_services_own(self) -> None:
        # A worker that does not leave is killed by its parent, which then ends what it embeds.
        longest = Settings().server.shutdown_seconds + STOP_MARGIN_SECONDS
        self.assertGreater(float(self.unit["Service"]["TimeoutStopSec"]), longest)
        self.assertEqual(self.unit["Service"]["KillSignal"], "SIGTERM")

    def test_it_runs_in_the_foreground_and_reloads_by_hup(self) -> None:
        service = self.unit["Service"]
        self.assertIn("twistd --nodaemon --pidfile= project-service --config", service["ExecStart"])
        self.assertEqual(service["Type"], "exec")
        self.assertIn("-HUP", service["ExecReload"])
        self.assertEqual(service["ProtectSystem"], "strict")
        self.assertEqual(service["StateDirectory"], "project-service")

    def test_a_reload_that_comes_too_early_leads_to_a_restart(self) -> None:
        # systemd takes an end by SIGHUP for a clean one.
        self.assertEqual(self.unit["Service"]["RestartForceExitStatus"], "SIGHUP")

    def test_the_runtime_directory_is_that_of_the_documented_socket(self) -> None:
        page = (UNIT.parents[1] / "docs" / "operations.rst").read_text("utf-8")
        self.assertIn(f"unix:/run/{self.unit['Service']['RuntimeDirectory']}/", page)

    def test_a_worker_killed_for_memory_does_not_end_the_service(self) -> None:
        # systemd's own default is "stop".
        self.assertEqual(self.unit["Service"]["OOMPolicy"], "continue")
