"""Reads and writes files named by the user, and reports failures as `ConfigError` with the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_conductor.errors import ConfigError


@contextmanager
def reading_errors(path: str | Path) -> Iterator[None]:
    """Translates the errors of reading `path`.

    Raises:
        ConfigError: the file can't be read or is not UTF-8.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {str(path)!r}: it is not text in UTF-8") from error


@contextmanager
def writing_errors(path: str | Path) -> Iterator[None]:
    """Translates the errors of writing `path`.

    Raises:
        ConfigError: the file can't be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"can't write {str(path)!r}: {error.strerror or error}") from error


@contextmanager
def open_for_writing(path: Path) -> Iterator[Callable[[str], None]]:
    """Opens `path` for writing and yields a function that writes one line.

    Errors in the body of the `with` statement that don't come from this file pass through unchanged.

    Raises:
        ConfigError: the file can't be written.
    """
    with writing_errors(path):
        file = path.open("w", encoding="utf-8", newline="\n")

    def write(line: str) -> None:
        with writing_errors(path):
            file.write(f"{line}\n")

    try:
        yield write
    finally:
        with writing_errors(path):
            file.close()


def read_text(path: str | Path) -> str:
    """Reads a UTF-8 text file, without the byte order mark that some editors on Windows write.

    Raises:
        ConfigError: the file can't be read or is not UTF-8.
    """
    with reading_errors(path):
        return Path(path).read_text(encoding="utf-8-sig")


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file, or leaves the file as it was.

    Raises:
        ConfigError: the file can't be written.
    """
    with writing_errors(path):
        if path.exists() and not path.is_file():  # a pipe or device, such as /dev/stdout
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()  # a link stays a link
        temporary = target.with_name(f"{target.name}.half")
        try:
            temporary.write_text(text, encoding="utf-8")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(target)


def check_writable(path: Path) -> Path:
    """Returns `path` after checking that it can be written, so that a run doesn't fail after its calls are paid.

    Raises:
        ConfigError: the file can't be written.
    """
    with writing_errors(path):
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    return path
