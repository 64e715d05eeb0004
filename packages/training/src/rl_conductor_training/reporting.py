"""Tables and pages of reports: the same tables for the terminal, Markdown and HTML, and one layout for all pages."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


@dataclass(frozen=True)
class Table:
    """A table of formatted cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def render(template: str, **values: object) -> str:
    """Renders a file of the folder `templates`, such as `bench.md`, with these values."""
    environment = Environment(
        loader=PackageLoader("rl_conductor_training"),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    return environment.get_template(f"{template}.jinja").render(values)
