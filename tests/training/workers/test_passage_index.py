from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor_training.tasks.passage import Passage
from rl_conductor_training.workers.passage_index import MAX_PASSAGE_CHARS, PassageIndex

ANIMALS = (
    Passage("Otter", "It lives in rivers and eats fish."),
    Passage("Heron", "A bird that eats fish; the otter is its neighbour."),
    Passage("Badger", "It digs and sleeps by day."),
)


def test_matching_passages_are_returned_best_first() -> None:
    library = PassageIndex(ANIMALS)
    assert [passage.title for passage in library.search("What does an otter eat?")] == ["Otter", "Heron"]
    assert library.search("who digs?") == [ANIMALS[2]]
    assert library.search("volcano") == []
    assert library.search("?!") == []
    assert len(library.search("fish", limit=1)) == 1


@pytest.mark.parametrize("query", ['"', "otter OR", "NEAR(fish, 2)", "title:otter*", "a AND (b", "fish\x00", "';"])
def test_query_syntax_is_treated_as_words(query: str) -> None:
    assert all(passage in ANIMALS for passage in PassageIndex(ANIMALS).search(query))


def test_an_index_is_thread_safe() -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(PassageIndex(ANIMALS).search, ["digs"] * 8))
    assert results == [[ANIMALS[2]]] * 8
    gc.collect()  # an open connection would warn here


def test_files_are_split_into_paragraphs_of_limited_size(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "rivers.md").write_text("The Elbe\nis long.\n\nThe Oder is wide.")
    (tmp_path / "notes" / "long.txt").write_text("A sentence about lakes. " * 200)
    (tmp_path / "notes" / "image.png").write_bytes(b"rivers")
    library = PassageIndex.from_path(tmp_path / "notes")
    assert library.search("oder") == [Passage("rivers", "The Oder is wide.")]
    assert library.search("elbe") == [Passage("rivers", "The Elbe is long.")]
    pieces = library.search("lakes", limit=99)
    assert len(pieces) > 1
    assert all(len(passage.text) <= MAX_PASSAGE_CHARS and passage.text.endswith("lakes.") for passage in pieces)
    assert PassageIndex.from_path(tmp_path / "notes" / "rivers.md").search("wide")


def test_a_text_without_spaces_is_split_too(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x" * (2 * MAX_PASSAGE_CHARS + 1))
    assert PassageIndex.from_path(tmp_path / "x.txt").search("x" * MAX_PASSAGE_CHARS)


def test_an_empty_or_missing_library_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one passage"):
        PassageIndex.from_path(tmp_path)
    with pytest.raises(ConfigError, match="can't read"):
        PassageIndex.from_path(tmp_path / "nowhere.txt")
