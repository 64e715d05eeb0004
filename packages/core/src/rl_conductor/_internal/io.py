"""Files that a user names: what the system says against one is told in the same words wherever it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_conductor.errors import ConfigError


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Stands around whatever reads this file.

    Raises:
        ConfigError: it can't be read, or is not the text that it is read as.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {str(path)!r}: it is not text in UTF-8") from error


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Stands around whatever writes this file.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"can't write {str(path)!r}: {error.strerror or error}") from error


@contextmanager
def written(path: Path) -> Iterator[Callable[[str], None]]:
    """What writes a file anew, line by line. Whatever else fails meanwhile is no failure of this file.

    Raises:
        ConfigError: it can't be written.
    """
    with writing(path):
        file = path.open("w", encoding="utf-8", newline="\n")

    def write(line: str) -> None:
        with writing(path):
            file.write(f"{line}\n")

    try:
        yield write
    finally:
        with writing(path):
            file.close()


def read_text(path: str | Path) -> str:
    """The text in a file.

    Raises:
        ConfigError: it can't be read, or holds no text.
    """
    with reading(path):
        return Path(path).read_text(encoding="utf-8")


def writable(path: Path) -> Path:
    """`path` itself, once it is sure that a file can be there: better than to find out when all is paid.

    Raises:
        ConfigError: none can.
    """
    with writing(path):
        path.open("a").close()
    return path
