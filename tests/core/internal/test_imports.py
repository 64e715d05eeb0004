from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl_conductor._internal.imports import import_object
from rl_conductor.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is not on Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_module_in_the_current_folder_is_imported(folder: Path) -> None:
    (folder / "shop_of_ann.py").write_text("import shelf_of_ann\nstock = shelf_of_ann.pens")
    (folder / "shelf_of_ann.py").write_text("pens = 17")
    assert import_object("shop_of_ann:stock") == 17


def test_an_installed_module_comes_before_that_of_the_current_folder(folder: Path) -> None:
    (folder / "json.py").write_text("dumps = None")
    assert callable(import_object("json:dumps"))
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("shop", "not an import path; write 'module:name'"),
        (":name", "not an import path"),
        ("no_such_shop:stock", "No module named 'no_such_shop'; the module must be .* in the current folder"),
        ("json:no_such_name", "module 'json' has no 'no_such_name'"),
        ("broken_shop:stock", "No module named 'no_such_shelf'"),
        ("misspelt_shop:stock", r"'misspelt_shop:stock' can't be imported: SyntaxError: .*misspelt_shop\.py, line 1"),
        ("locked_shop:stock", r"^set SHOP_KEY$"),
        ("failing_shop:stock", "'failing_shop:stock' can't be imported: AttributeError: 'int' object has no attribute"),
    ],
)
def test_the_error_says_what_is_missing(folder: Path, path: str, says: str) -> None:
    (folder / "broken_shop.py").write_text("import no_such_shelf")
    (folder / "misspelt_shop.py").write_text("stock = (")
    (folder / "locked_shop.py").write_text("from rl_conductor import ConfigError\nraise ConfigError('set SHOP_KEY')")
    (folder / "failing_shop.py").write_text("stock = (1).no_such_shelf")
    with pytest.raises(ConfigError, match=says):
        import_object(path)
