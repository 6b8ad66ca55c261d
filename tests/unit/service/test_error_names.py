"""Functions that make errors are named for the codes, and docstrings name the codes that are raised."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, isfunction, signature
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from twisted.trial.unittest import TestCase

from project_service.errors import ApiError

PACKAGE = Path(__file__).parents[3] / "project_service"
# The argument of ``tables/api.Tables._newer``, which is raised again.
ARGUMENTS: Mapping[Any, Any] = {str: "x", int: 1, tuple: (), list: [], Mapping: {}, Sequence: ()}
# The list of names after "Raises" in a docstring.
LISTED = re.compile(r"\b[Rr]aises? ((?:``[a-z_]+``(?:,? (?:and|or) |, )?)+)")
# The argument of ``tables/api.Tables._newer``, which is raised again.
OTHERS = {"error"}


def modules() -> Iterator[types.ModuleType]:
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield import_module(".".join(name for name in names if name != "__init__"))


def kind(annotation: Any) -> Any:
    """The class of an argument, without its parameters; of a union the first."""
    origin = get_origin(annotation)
    return kind(annotation.__args__[0]) if origin is types.UnionType else origin or annotation


def made(function: Callable[..., ApiError]) -> ApiError | None:
    """The error that ``function`` makes; None if it does not choose the code itself, but is given it or an error."""
    hints = get_type_hints(function)
    parameters = signature(function).parameters.values()
    if "code" in hints or any(one.kind is Parameter.VAR_POSITIONAL for one in parameters):
        return None
    kinds = {one.name: kind(hints[one.name]) for one in parameters if one.default is Parameter.empty}
    if any(issubclass(one, BaseException) for one in kinds.values()):
        return None
    return function(**{name: ARGUMENTS[one] for name, one in kinds.items()})


def made_by_all() -> Iterator[tuple[str, ApiError]]:
    """Every function of a module that makes errors, with one that it makes."""
    for module in modules():
        for name, function in vars(module).items():
            if not isfunction(function) or function.__module__ != module.__name__:
                continue
            if function.__annotations__.get("return") in ("ApiError", "TableError"):
                error = made(function)
                if error is not None:
                    yield f"{module.__name__}.{name}", error


def named_for(name: str, codes: set[str]) -> str | None:
    """The code that the name of a function begins with, the longest of several."""
    name = name.rpartition(".")[2].strip("_")
    return max((code for code in codes if f"{name}_".startswith(f"{code}_")), key=len, default=None)


class ErrorNames(TestCase):
    def test_each_function_is_named_for_the_code_of_its_error(self) -> None:
        errors = dict(made_by_all())
        self.assertGreater(len(errors), 120)
        codes = {error.code for error in errors.values() if error.code.islower()}
        for name, error in errors.items():
            code = error.code if error.code in codes else None
            self.assertEqual(named_for(name, codes), code, name)

    def test_a_code_is_made_by_a_function_of_that_very_name(self) -> None:
        errors = dict(made_by_all())
        names = {name.rpartition(".")[2] for name in errors}
        self.assertEqual({error.code for error in errors.values() if error.code.islower()} - names, set())

    def test_what_a_docstring_says_is_raised_is_a_code(self) -> None:
        codes = {error.code for _, error in made_by_all()}
        named = set()
        for path in PACKAGE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    for said in LISTED.findall(" ".join((ast.get_docstring(node) or "").split())):
                        named |= {(path.name, name) for name in re.findall(r"``([a-z_]+)``", said)}
        self.assertGreater(len(named), 100)
        self.assertEqual({(path, name) for path, name in named if name not in codes | OTHERS}, set())
