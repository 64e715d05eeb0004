"""The pytest plugin, in sessions of pytest with the plugins that are installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from skilled_folder import Learned

pytest_plugins = ["pytester"]

TESTS = """
def test_the_conductor_is_as_good_as_its_record(check_conductor):
    check_conductor({folder!r}, {questions!r})
"""


@pytest.fixture(autouse=True)
def settings(pytester: pytest.Pytester) -> None:
    """Answers what pytest-asyncio would warn about in the sessions."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")


def forget(learned: Learned) -> None:
    """Replaces the workers of the pool file by ones that know nothing."""
    pool = (learned.folder.parent / "pool.toml").read_text()
    for name in ("pointer", "speller"):
        pool = pool.replace(f'"skill:{name}"', '"skill:atlas"')
    (learned.folder.parent / "pool.toml").write_text(pool)


def session(pytester: pytest.Pytester, learned: Learned, *options: str) -> pytest.RunResult:
    arguments = [f"--conductor={learned.folder}", f"--conductor-questions={learned.questions}", *options]
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_an_option_adds_a_test_that_passes_and_prints_the_comparison(
    pytester: pytest.Pytester, learned: Learned
) -> None:
    result = session(pytester, learned)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*learned conductors*",
            "*(linear): not shown to be worse than its record",
            "  right: recorded 1.00*, now 1.00*",
        ]
    )


def test_the_session_fails_where_the_conductor_is_worse(pytester: pytest.Pytester, learned: Learned) -> None:
    forget(learned)
    result = session(pytester, learned)
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*WORSE than its record", "  difference: -1.00 *", "  changed since learning: worker 'pointer' has changed"]
    )
    result.stdout.no_fnmatch_line("*record_check.py*")


def test_the_fixture_does_the_same_in_a_test_of_the_users_own(pytester: pytest.Pytester, learned: Learned) -> None:
    names = {"folder": str(learned.folder), "questions": str(learned.questions)}
    pytester.makepyfile(TESTS.format(**names))
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    forget(learned)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*WORSE than its record"])


def test_the_added_test_is_selected_like_any_other(pytester: pytest.Pytester, learned: Learned) -> None:
    pytester.makepyfile("def test_other(): pass")
    session(pytester, learned).assert_outcomes(passed=2)
    session(pytester, learned, "-k", "test_other").assert_outcomes(passed=1, deselected=1)


def test_what_cannot_be_compared_fails_with_the_reason_alone(pytester: pytest.Pytester, learned: Learned) -> None:
    (learned.folder / "heldout.json").unlink()
    result = session(pytester, learned)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*can't be compared with its record: *has no heldout.json*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_a_cap_that_does_not_suffice_is_a_failure(pytester: pytest.Pytester, learned: Learned) -> None:
    result = session(pytester, learned, "--conductor-usd", "0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*limits.usd=0 ended the check after 0 of * held-out questions*"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--conductor=folder"], "--conductor needs --conductor-questions FILE"),
        (["--conductor-usd", "much"], "write an amount in US dollars"),
        (["--conductor-usd=-1"], "write an amount in US dollars"),
    ],
)
def test_wrong_options_are_named(pytester: pytest.Pytester, options: list[str], message: str) -> None:
    result = pytester.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str() + result.stdout.str()


def test_the_plugin_of_every_session_imports_nothing_heavy() -> None:
    """pytest loads the plugin for all users of this package, whether they use it or not."""
    code = "import json, sys, rl_conductor_training.pytest_plugin; print(json.dumps(list(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"rl_conductor", "numpy", "scipy", "pydantic"} & set(json.loads(found))
