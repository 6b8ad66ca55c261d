"""The rules of docs/architecture.rst, checked in the source: what may import what, and how long a file may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import TestCase

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "project_service"

# Values and functions: no reactor, no web framework, no database driver.
PURE = [
    "errors.py",
    "settings/kinds.py",
    "settings/model.py",
    "http/cors.py",
    "http/describe.py",
    "http/head.py",
    "http/json_body.py",
    "http/openapi.py",
    "http/response.py",
    "auth/tokens.py",
    "auth/values.py",
    "storage/conditions.py",
    "storage/keys.py",
    "storage/s3/signing.py",
    "storage/values.py",
    "tables/openapi.py",
    "tables/response.py",
    "tables/values.py",
    "tables/schema_cache/build.py",
    "tables/schema_cache/queries.py",
    "tables/request",
    "tables/plan",
    "tables/sql",
]
IMPURE = ("twisted", "klein", "treq", "txpostgres", "psycopg2")
# A layer may import itself and those before it.
LAYERS = {
    "errors": 0,
    "lifecycle": 0,
    "settings": 0,
    "http": 1,
    "database": 1,
    "auth": 2,
    "storage": 2,
    "tables": 2,
    "application": 3,
    "daemon": 4,
    "tap": 5,
}
LONGEST_FUNCTION = 60
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


def sources(*places: str) -> Iterator[Path]:
    for place in places:
        path = PACKAGE / place
        assert path.exists(), place
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def imports(path: Path, *, inner: bool = True) -> set[str]:
    """Every module that a file imports; without ``inner`` only those imported when it is loaded."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = ast.walk(tree) if inner else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


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


class Architecture(TestCase):
    def test_pure_modules_import_no_machinery(self) -> None:
        for path in sources(*PURE):
            for name in imports(path, inner=False):
                self.assertNotIn(name.partition(".")[0], IMPURE, f"{path.name} imports {name}")

    def test_a_layer_imports_only_itself_and_lower_layers(self) -> None:
        for path in sources("."):
            mine = LAYERS.get(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
            if mine is None:
                continue
            for name in imports(path):
                parts = name.split(".")
                if parts[0] == "project_service" and len(parts) > 1 and parts[1] in LAYERS:
                    theirs = LAYERS[parts[1]]
                    self.assertLessEqual(theirs, mine, f"{path.relative_to(ROOT)} imports {name}")

    def test_http_knows_no_part(self) -> None:
        """What is a part's own (paths, headers, error codes, the form of its errors) comes with its routes."""
        for path in sources("http"):
            for line, text in literals(path):
                named = set(re.split(r"[^a-z]+", text.lower())) & OF_PARTS
                self.assertEqual(named, set(), f"{path.relative_to(ROOT)}:{line}")

    def test_auth_storage_and_tables_do_not_import_each_other(self) -> None:
        for part in ("auth", "storage", "tables"):
            others = {"auth", "storage", "tables"} - {part}
            for path in sources(part):
                for name in imports(path):
                    parts = name.split(".")
                    self.assertFalse(
                        parts[0] == "project_service" and len(parts) > 1 and parts[1] in others,
                        f"{path.relative_to(ROOT)} imports {name}",
                    )

    def test_what_makes_statements_does_not_import_what_reads_the_schema_cache(self) -> None:
        for path in sources(*(f"tables/{name}" for name in ("request", "plan", "sql", "response.py"))):
            for name in imports(path):
                self.assertFalse(
                    name.startswith("project_service.tables.schema_cache"), f"{path.name}: {name}"
                )

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

    def test_the_page_names_modules_that_exist(self) -> None:
        page = (ROOT / "docs" / "architecture.rst").read_text("utf-8")
        section = page[page.index("Where things are\n---") : page.index("How a request flows\n---")]
        named = set(re.findall(r"``([a-z0-9_]+)/?``", section)) - {"twistd", "service_role"}
        there = {path.stem for path in PACKAGE.rglob("*") if path.is_dir() or path.suffix == ".py"}
        self.assertGreater(len(named), 100)
        self.assertEqual(named - there, set())
