"""A command as another package would bring it."""

import typer


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"Hello, {name}.")
