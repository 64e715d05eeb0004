"""An extension of Griffe for the API reference: in defaults, constants are shown as their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from griffe import Attribute, Expr, ExprName, Extension, GriffeLoader, Module, Object


class ConstantValues(Extension):
    """Replaces names of constants, such as `MAX_RUNS`, by their values in the defaults of parameters and attributes."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        """Replaces the names in a package that was loaded."""
        for one in defined_in(pkg):
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
