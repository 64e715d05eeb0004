"""The picture of a workflow, and the text around it: pure."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rl_conductor import Conductor, ScriptedModel
from rl_conductor._internal.formatting import cost, cost_in_words, dollars, megabytes, seconds
from rl_conductor.cli.output.console import clean, one_line, write_json
from rl_conductor.cli.output.diagram import StepRow, gutters, outline, table
from rl_conductor.cli.output.progress import Lines
from rl_conductor.errors import ModelError
from rl_conductor.integration import run_sync
from rl_conductor.types import Usage
from rl_conductor.workflow.workflow import Step, Workflow


def workflow(*access: set[int]) -> Workflow:
    return Workflow(steps=tuple(Step(subtask="Do it.", worker="w", access=frozenset(reads)) for reads in access))


@pytest.mark.parametrize(
    ("access", "drawn"),
    [
        ([set()], [""]),
        ([set(), set()], ["", ""]),
        ([set(), {0}], ["╭─ ", "╰▶ "]),
        ([set(), set(), {0, 1}], ["╭── ", "│╭─ ", "╰┴▶ "]),
        ([set(), {0}, {0, 1}], ["╭── ", "├┬▶ ", "╰┴▶ "]),
        ([set(), {0}, {1}], ["╭── ", "╰┬▶ ", " ╰▶ "]),
        ([set(), set(), {0}, {1, 2}], ["╭─── ", "│╭── ", "╰│┬▶ ", " ╰┴▶ "]),
        ([set(), {0}, {0, 1}, {0, 1, 2}], ["╭─── ", "├┬─▶ ", "├┼┬▶ ", "╰┴┴▶ "]),
        ([set(), set(), {0}], ["╭─ ", "│  ", "╰▶ "]),
    ],
)
def test_replies_are_drawn_as_lanes_from_step_to_step(access: list[set[int]], drawn: list[str]) -> None:
    assert [gutter.first for gutter in gutters(workflow(*access))] == drawn


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    count = draw(st.integers(1, 7))
    return workflow(*(draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)))


@given(workflows())
def test_every_drawing_can_be_read_back(made: Workflow) -> None:
    """Follow each lane down from where it begins: it must touch exactly the steps that read its source."""
    lines = [gutter.first for gutter in gutters(made)]
    lanes: dict[int, int] = {}
    for index, (line, step) in enumerate(zip(lines, made.steps, strict=True)):
        read = {source for place, source in lanes.items() if line[place] in "├┼╰┴"}
        assert read == step.access
        lanes = {place: source for place, source in lanes.items() if line[place] not in "╰┴"}
        begins = [place for place, glyph in enumerate(line) if glyph in "╭┬"]
        assert len(begins) == (1 if any(index in later.access for later in made.steps) else 0)
        lanes |= dict.fromkeys(begins, index)
    assert lanes == {}


@given(workflows())
def test_all_lines_of_a_drawing_are_equally_long(made: Workflow) -> None:
    assert len({len(part) for gutter in gutters(made) for part in gutter}) == 1


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_its_terminal(width: int) -> None:
    made = workflow(set(), {0})
    rows = [StepRow("✓", "green", "a-worker-" * 9, "Do it. " * 40, "1.2 s", "1,234 tok", "$0.0012")] * 2
    console = Console(width=width, record=True, file=None)

    with console.capture() as shown:
        console.print(table(made, rows))

    lines = shown.get().splitlines()
    assert len(lines) == 2
    assert all(len(line) == width and line.endswith("$0.0012") for line in lines)


def test_an_outline_wraps_subtasks_beside_their_lanes() -> None:
    steps = (Step(subtask="one two three four five six", worker="w"), Step(subtask="x", worker="w", access={0}))

    drawn = outline(Workflow(steps=steps), 30).plain.splitlines()

    assert drawn == ["╭─ 1 w  one two three four ", "│       five six", "╰▶ 2 w  x"]


@pytest.mark.parametrize(
    ("raw", "fit"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPsixel\x1b\\after", "after"),
        ("\x1b(0lines\x1bc", "lines"),
        ("\x9b2Jcleared", "cleared"),
        ("a\rb\x08c\x07d\x7fe", "abcde"),
        ("\u202eevil\u2066x\u200f", "evilx"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("cut \x1b", "cut "),
        ("grüße 漢字 🙂", "grüße 漢字 🙂"),
    ],
)
def test_text_of_others_is_made_fit_for_a_terminal(raw: str, fit: str) -> None:
    assert clean(raw) == fit


@given(st.text())
def test_clean_text_holds_no_control_character(raw: str) -> None:
    assert not [char for char in clean(raw) if (ord(char) < 32 or 127 <= ord(char) < 160) and char not in "\t\n"]


def test_one_line_is_one_line() -> None:
    assert one_line(" a\n\n b\x1b[1m\tc ") == "a b c"


def test_json_is_escaped_and_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    write_json('"a\x9b\u202e b"')
    assert capsys.readouterr().out == '"a\\u009b\\u202e b"\n'


@pytest.mark.parametrize(
    ("encoding", "written"), [("utf8", '"\u2713 \U0001f600"'), ("cp1252", r'"\u2713 \ud83d\ude00"')]
)
def test_json_holds_every_character_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, written: str
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    monkeypatch.setattr("sys.stdout", stdout)
    write_json('"\u2713 \U0001f600"')
    stdout.flush()
    assert stdout.buffer.getvalue().decode(encoding) == written + "\n"


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "$0"),
        ("0.00000123", "$0.0000012"),
        ("0.0005", "$0.00050"),
        ("0.12345", "$0.1234"),
        ("1234.5", "$1,234.50"),
    ],
)
def test_dollars_show_the_digits_that_matter(amount: str, shown: str) -> None:
    assert dollars(Decimal(amount)) == shown


@pytest.mark.parametrize(
    ("spent", "calls", "brief", "words"),
    [
        ("0", 0, "$0", "$0"),
        ("0.5", 0, "$0.5000", "$0.5000"),
        ("0.5", 1, "≥ $0.5000", "at least $0.5000 (1 call unpriced)"),
        ("0", 2, "?", "at least $0 (2 calls unpriced)"),
    ],
)
def test_a_cost_says_how_sure_it_is(spent: str, calls: int, brief: str, words: str) -> None:
    used = Usage(cost=Decimal(spent), unpriced_calls=calls)

    assert (cost(used), cost_in_words(used)) == (brief, words)


@pytest.mark.parametrize(
    ("span", "shown"),
    [(0.0421, "0.04 s"), (1.26, "1.3 s"), (99.94, "99.9 s"), (99.96, "1 min 40 s"), (185, "3 min 05 s")],
)
def test_seconds_are_read_at_a_glance(span: float, shown: str) -> None:
    assert seconds(span) == shown


def test_sizes_are_those_of_vendors() -> None:
    assert (megabytes(98_362_432), megabytes(1_117_320_768)) == ("98 MB", "1.1 GB")


def test_an_attempt_at_a_plan_that_broke_off_is_counted_as_failed_and_not_as_a_rejected_plan() -> None:
    broke_off: list[str | Exception] = ["model_id = [", ModelError("reset", model="p", retryable=True)]
    plan = 'model_id = [0]\nsubtasks = ["Say it."]\naccess_list = [[]]'
    output = io.StringIO()
    lines = Lines(Console(file=output), "scripted")

    run_sync(Conductor(ScriptedModel([broke_off, plan]), {"a": ScriptedModel("A")}).run("Hello?", on_event=lines.show))

    assert "planned: 1 step, after 1 failed attempt" in output.getvalue().splitlines()
