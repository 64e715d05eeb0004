"""An extension of Griffe for the API reference: defaults, annotations and summaries that people can read.

Constants in defaults are shown as their values, annotations without marks for pydantic, and the first paragraph of a
docstring in one line, because tables of members show the first line only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from griffe import (
    Attribute,
    Expr,
    ExprBinOp,
    ExprCall,
    ExprName,
    ExprSubscript,
    Extension,
    GriffeLoader,
    Module,
    Object,
)

COLLECTIONS = {"dict", "frozenset", "list", "set", "tuple"}


class ReadableReference(Extension):
    """Makes the values, annotations and docstrings of what was loaded readable."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Keeps a default such as `frozenset({"*"})`, which the extension for pydantic would take for `Field(...)`."""
        attr.annotation = without_validation_marks(attr.annotation)
        if isinstance(attr.value, ExprCall) and str(attr.value.function) in COLLECTIONS:
            attr.value = str(attr.value)

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        """Changes everything in a package that was loaded."""
        for one in defined_in(pkg):
            if one.docstring:
                one.docstring.value = with_joined_lines(one.docstring.value)
            if isinstance(one, Attribute):
                one.value = with_values(one.value, loader)
            for parameter in getattr(one, "parameters", ()):
                parameter.default = with_values(parameter.default, loader)


def defined_in(parent: Object) -> Iterator[Object]:
    """Yields everything that a module or class defines, without what it imports."""
    for member in parent.members.values():
        if isinstance(member, Object):
            yield member
            yield from defined_in(member)


def without_validation_marks(annotation: str | Expr | None) -> str | Expr | None:
    """Returns `X | None` for `SkipValidation[X] | None`."""
    if isinstance(annotation, ExprSubscript) and str(annotation.left) == "SkipValidation":
        return annotation.slice
    if isinstance(annotation, ExprBinOp):
        annotation.left = without_validation_marks(annotation.left) or ""
    return annotation


def with_joined_lines(docstring: str) -> str:
    """Returns a docstring whose first paragraph is one line."""
    first, *rest = docstring.split("\n\n", 1)
    return "\n\n".join([" ".join(line.strip() for line in first.split("\n")), *rest])


def with_values(default: str | Expr | None, loader: GriffeLoader) -> str | Expr | None:
    """Returns a default with the values of its constants; one without constants stays as it is."""
    if not isinstance(default, Expr):
        return default
    text = str(default)
    for name in default.iterate():
        if isinstance(name, ExprName) and re.fullmatch(r"[A-Z][A-Z_]+", name.name):
            with suppress(KeyError):  # of another library, which is not loaded
                constant = loader.modules_collection[name.canonical_path]
                text = str(constant.value).join(re.split(rf"(?<![\w.]){name.name}\b", text))
    return default if text == str(default) else text
