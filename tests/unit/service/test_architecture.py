"""The rules of docs/architecture.rst, checked in the source: what may import what, and how long a function may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "project_service"

# Values and functions: they import no reactor, no web framework and no database driver.
PURE = [
    "audit.py",
    "base64url.py",
    "email_addresses.py",
    "errors.py",
    "files.py",
    "keys.py",
    "process.py",
    "public_addresses.py",
    "role_claim.py",
    "whole_numbers.py",
    "settings/kinds.py",
    "settings/model.py",
    "http/caller.py",
    "http/cors.py",
    "http/describe.py",
    "http/head.py",
    "http/json_body.py",
    "http/metrics.py",
    "http/openapi.py",
    "http/response.py",
    "database/quoting.py",
    "database/numbered_files.py",
    "database/sql_facts.py",
    "database/sql_lexer.py",
    "database/sql_scripts.py",
    "database/sql_statements.py",
    "database/trust.py",
    "auth/accounts.py",
    "auth/context.py",
    "auth/errors.py",
    "auth/id_tokens.py",
    "auth/mail_message.py",
    "auth/mail_templates.py",
    "auth/profiles.py",
    "auth/sessions.py",
    "auth/tokens.py",
    "auth/values.py",
    "cli/openings.py",
    "operators/errors.py",
    "operators/rights.py",
    "storage/access.py",
    "storage/presentation.py",
    "storage/parsing/conditions.py",
    "storage/durations.py",
    "storage/errors.py",
    "storage/parsing/form.py",
    "storage/keys.py",
    "storage/links.py",
    "storage/objects.py",
    "storage/parsing/parameters.py",
    "storage/values.py",
    "storage/s3/errors.py",
    "storage/s3/signing.py",
    "storage/s3/xml.py",
    "tables/access.py",
    "tables/description/openapi.py",
    "tables/reply/outcome.py",
    "tables/planner.py",
    "tables/reply/response.py",
    "tables/reply/suggestions.py",
    "tables/run/transaction_settings.py",
    "tables/values.py",
    "tables/schema_cache/build.py",
    "tables/schema_cache/queries.py",
    "tables/request",
    "tables/plan",
    "tables/sql",
    "workers/assignment.py",
]
IMPURE = ("twisted", "klein", "treq", "txpostgres", "psycopg2")
# Every package and module. Each may import itself and what stands on the lines before its own: neither the parts nor
# http and database know each other.
LAYERS = [
    [
        "base64url",
        "dsn",
        "email_addresses",
        "errors",
        "files",
        "frozen",
        "kept_log",
        "process",
        "public_addresses",
        "redirects",
        "role_claim",
        "whole_numbers",
    ],
    ["certificates", "lifecycle", "log", "settings"],
    ["network", "outgoing", "shares", "wait_queue"],
    ["splicing"],
    ["http", "database"],
    ["audit"],
    ["keys", "project_rules"],
    ["auth", "storage", "tables"],
    ["supabase"],
    ["console", "front_page", "operators"],
    ["tracing"],
    ["application", "bootstrap", "embedded"],
    ["workers", "cli"],
    ["daemon"],
    ["tap"],
]
LONGEST_FUNCTION = 60
# What docs/architecture.rst names besides modules.
OTHER_NAMES = {"live", "ready", "metrics", "admin", "users", "upload_raw"}
# What of the database package no part may use: connections themselves, and how they are shared and reset.
INNER_DATABASE = {
    *(f"project_service.database.connection.{name}" for name in ("Connection", "Pipeline")),
    *(f"project_service.database.pipeline.{name}" for name in ("Pipeline", "Statements")),
    *(f"project_service.database.pool.{name}" for name in ("Pipelines",)),
    *(f"project_service.database.acting.{name}" for name in ("Recycler", "RESET", "FORGET_PLANS")),
}
# Words in paths, headers and error codes that belong to one part.
OF_PARTS = {
    "auth",
    "login",
    "signup",
    "jwks",
    "users",
    "passwords",
    "storage",
    "bucket",
    "buckets",
    "objects",
}
OF_PARTS |= {"tables", "db", "rest", "pgrst", "postgrest", "admin"}


def sources(*names: str) -> Iterator[Path]:
    for name in names:
        path = PACKAGE / name
        assert path.exists(), name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


@cache
def imports(path: Path, *, inner: bool = True) -> set[str]:
    """Every module that a file imports; without ``inner`` only those imported when it is loaded."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = ast.walk(tree) if inner else iter(tree.body)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """The strings and bytes in a file, with their lines, but for docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in alone:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path, names: Container[str]) -> set[str]:
    """The modules of the package that a file imports: for a name that is imported from a module, that module."""
    found = {name if name in names else name.rpartition(".")[0] for name in imports(path)}
    packages = {name for name in found if (ROOT / name.replace(".", "/")).is_dir()}
    return {name for name in found - packages if name in names}


class Architecture(TestCase):
    def test_pure_modules_import_no_machinery(self) -> None:
        for path in sources(*PURE):
            for name in imports(path, inner=False):
                self.assertNotIn(name.partition(".")[0], IMPURE, f"{path.name} imports {name}")

    def test_a_module_imports_only_itself_and_lower_layers(self) -> None:
        layer_of = {name: number for number, names in enumerate(LAYERS) for name in names}
        for path in sources("."):
            own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
            if own == "__init__":
                continue
            for name in imports(path):
                package, *rest = name.split(".")
                if package != "project_service" or not rest or rest[0] in (own, "__version__"):
                    continue
                self.assertLess(layer_of[rest[0]], layer_of[own], f"{path.relative_to(ROOT)} imports {name}")

    def test_no_modules_import_each_other(self) -> None:
        """Nor by way of others: of two ideas one stands on the other. What a module imports for its types alone, or
        within a function, counts as well."""
        names = {_module(path): path for path in sources(".")}
        try:
            TopologicalSorter({name: _imported(path, names) for name, path in names.items()}).prepare()
        except CycleError as circle:
            self.fail(" imports ".join(reversed(circle.args[1])))

    def test_every_module_has_a_layer(self) -> None:
        there = {
            path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        self.assertEqual(there - {"__init__"}, {name for names in LAYERS for name in names})

    def test_http_knows_no_part(self) -> None:
        """What is a part's own (paths, headers, error codes, the form of its errors) comes with its routes."""
        for path in sources("http"):
            for line, text in literals(path):
                named = set(re.split(r"[^a-z]+", text.lower())) & OF_PARTS
                self.assertEqual(named, set(), f"{path.relative_to(ROOT)}:{line}")

    def test_what_makes_statements_does_not_import_what_reads_the_schema_cache(self) -> None:
        for path in sources(*(f"tables/{name}" for name in ("request", "plan", "sql", "reply/response.py"))):
            for name in imports(path):
                self.assertFalse(
                    name.startswith("project_service.tables.schema_cache"), f"{path.name}: {name}"
                )

    def test_parts_run_sql_as_somebody_by_the_module_for_it_alone(self) -> None:
        """Role, claims, resets, plans and sharing are the concern of ``database/acting``: neither a connection nor
        what connections share comes into the hands of a part, and no part sets a role."""
        for path in sources("auth", "storage", "tables"):
            where = str(path.relative_to(ROOT))
            for name in imports(path):
                self.assertNotIn(name, INNER_DATABASE, where) if path.name != "assemble.py" else None
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Attribute):
                    self.assertNotEqual(node.attr, "pipelines", where)
            for line, text in literals(path):
                self.assertNotIn("set_config('role'", text, f"{where}:{line}")

    def test_opentelemetry_is_imported_by_one_package_and_that_where_it_is_used_alone(self) -> None:
        """The extra may be missing, and nothing is to depend on it where nothing is traced."""
        for path in sources("."):
            name = path.relative_to(PACKAGE).as_posix()
            if not name.startswith("tracing/"):
                self.assertFalse(any(one.startswith("opentelemetry") for one in imports(path)), name)
        shown = "import project_service.application, sys; print('opentelemetry' in sys.modules)"
        loaded = subprocess.run(
            [sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, check=True
        )
        self.assertEqual(loaded.stdout, "False\n")

    def test_no_module_imports_the_reactor_when_it_is_loaded(self) -> None:
        for path in sources("."):
            loaded = imports(path, inner=False)
            self.assertNotIn("twisted.internet.reactor", loaded, str(path))

    def test_functions_have_at_most_60_lines(self) -> None:
        for path in sources("."):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                    length = node.end_lineno - node.lineno + 1
                    self.assertLessEqual(length, LONGEST_FUNCTION, f"{path.relative_to(ROOT)}: {node.name}")

    def test_modules_that_docstrings_and_comments_name_exist(self) -> None:
        """Those below a package by a slash, or by a dot where no schema of the database has the package's name."""
        packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
        dotted = "|".join(sorted(packages - {"auth", "storage"}))
        name = re.compile(rf"``((?:{'|'.join(sorted(packages))})/[a-z_0-9/]+|(?:{dotted})\.[a-z_0-9]+)\b")
        for path in sources("."):
            for found in name.findall(path.read_text("utf-8")):
                wanted = PACKAGE / found.replace(".", "/")
                there = wanted.exists() or wanted.with_suffix(".py").exists()
                self.assertTrue(there, f"{path.relative_to(ROOT)}: {found}")

    def test_the_page_names_every_module_and_no_other(self) -> None:
        page = (ROOT / "docs" / "architecture.rst").read_text("utf-8")
        section = page[page.index("The parts\n---") : page.index("Where a request can be refused\n---")]
        named = {
            name for path in re.findall(r"``([a-z0-9_/]+)``", section) for name in path.split("/") if name
        }
        modules = {path.stem for path in PACKAGE.rglob("*.py")} - {"__init__"}
        packages = {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
        self.assertEqual(modules - named, set())
        # Tables of the database and settings are named too, with a dot or in capitals; these are other words.
        self.assertEqual(named - modules - packages - OTHER_NAMES, set())
