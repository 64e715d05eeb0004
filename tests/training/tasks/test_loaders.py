"""Each loader on local files of the hub's shape; nothing here reaches a network."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from rl_conductor import ConfigError, ScriptedModel
from rl_conductor.scoring import SHARES
from rl_conductor_training.tasks import Task, load_task

ADD = "def add(a, b):\n    return a + b\n"


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


async def values(task: Task, *replies: str) -> list[float]:
    return [(await task.score(task.samples[0], reply)).value for reply in replies]


async def test_aime25(tmp_path: Path) -> None:
    task = load_task("aime25", path=write_rows(tmp_path / "a.jsonl", {"id": "3", "problem": "1+1?", "answer": 2}))
    assert task.samples[0].id == "aime25-3"
    assert await values(task, r"\boxed{2}", r"\boxed{3}") == [1, 0]


async def test_math_500(tmp_path: Path) -> None:
    row = {"problem": "p", "answer": r"\frac{1}{2}", "subject": "Algebra", "level": 2, "unique_id": "test/1.json"}
    task = load_task("math-500", path=write_rows(tmp_path / "m.jsonl", row))
    assert task.samples[0].details == {"subject": "Algebra", "level": 2}
    assert await values(task, "It is $0.5$", "It is $0.6$") == [1, 0]


async def test_gsm8k_from_the_hub_or_from_a_wheel(tmp_path: Path) -> None:
    hub = {"question": "How many?", "answer": "3 * 400 = 1200\n#### 1,200"}
    task = load_task("gsm8k", path=write_rows(tmp_path / "hub.jsonl", hub))
    assert task.samples[0].answer == "1200"
    assert await values(task, r"\boxed{1,200}", r"\boxed{12}") == [1, 0]
    wheel = {"id": "gsm8k-test-0013", "prompt": "How many?", "expected": "18", "upstream_answer": "#### 18"}
    assert load_task("gsm8k", path=write_rows(tmp_path / "wheel.jsonl", wheel)).samples[0].answer == "18"


def test_a_parquet_file_loads_like_json_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415

    rows = [
        {"problem": f"{number} + 1?", "answer": str(number + 1), "unique_id": f"test/{number}"} for number in range(3)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "m.parquet")
    lines = load_task("math-500", path=write_rows(tmp_path / "m.jsonl", *rows))
    assert load_task("math-500", path=tmp_path / "m.parquet").samples == lines.samples
    (tmp_path / "m.parquet").rename(tmp_path / "m.PARQUET")
    assert load_task("math-500", path=tmp_path / "m.PARQUET").samples == lines.samples


def test_an_invalid_parquet_file_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "m.parquet").write_text("not at all")
    with pytest.raises(ConfigError, match=r"m.parquet' can't be read as Parquet"):
        load_task("math-500", path=tmp_path / "m.parquet")
    with pytest.raises(ConfigError, match="can't read"):
        load_task("math-500", path=tmp_path / "missing.parquet")


async def test_gpqa_diamond_shuffles_the_options(tmp_path: Path) -> None:
    keys = ("Record ID", "Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))
    with (tmp_path / "g.csv").open("w", newline="") as file:
        csv.writer(file).writerows([keys, *([f"rec{i}", "Why?", "right", "w1", "w2", "w3"] for i in range(20))])
    task = load_task("gpqa-diamond", path=tmp_path / "g.csv")
    assert {sample.answer for sample in task.samples} == set("ABCD")
    first = task.samples[0]
    assert f"{first.answer}) right" in first.question
    other = next(letter for letter in "ABCD" if letter != first.answer)
    assert await values(task, f"Answer: {first.answer}", f"Answer: {other}") == [1, 0]


async def test_mmlu(tmp_path: Path) -> None:
    row = {
        "question": "Largest?",
        "subject": "astronomy",
        "choices": ["Mars", "Jupiter", "Earth", "Venus"],
        "answer": 1,
    }
    task = load_task("mmlu", path=write_rows(tmp_path / "m.jsonl", row))
    assert (task.samples[0].answer, task.samples[0].id) == ("B", "mmlu-astronomy-0")
    assert await values(task, "B", "Answer: A") == [1, 0]


async def test_rlpr_keeps_short_answers_only(tmp_path: Path) -> None:
    def row(answer: str) -> dict[str, Any]:
        prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "How fast?"}]
        return {"uid": answer, "prompt": prompt, "reward_model": {"ground_truth": answer}, "ability": "physics"}

    task = load_task("rlpr", path=write_rows(tmp_path / "r.jsonl", row("12 m/s"), row("x" * 31)))
    assert [(sample.answer, sample.domain) for sample in task.samples] == [("12 m/s", "physics")]
    assert await values(task, "The answer is 12 m/s.", r"\boxed{13 m/s}") == [1, 0]


def livecode(private: str, **row: Any) -> dict[str, Any]:
    public = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])
    return {
        "question_id": "abc",
        "question_content": "Add two numbers.",
        "starter_code": "",
        "public_test_cases": public,
        "private_test_cases": private,
        "metadata": "{}",
    } | row


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


async def test_livecodebench_runs_public_and_private_tests(tmp_path: Path) -> None:
    private = packed(json.dumps([{"input": "5 5\n", "output": "10\n"}]))
    task = load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", livecode(private)))
    right = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    assert await values(task, right, "```python\nprint(3)\n```", "I can't.") == [1, 0, 0]
    score = await task.score(task.samples[0], "```python\nprint(3)\n```")
    assert score.explanation == "test 2: it gave '3' and not '10'"


async def test_livecodebench_calls_the_completed_method(tmp_path: Path) -> None:
    case = json.dumps([{"input": '[1, 2]\n"x"', "output": "[1, 2, 2]", "testtype": "functional"}])
    row = livecode("[]", starter_code="class Solution:\n    def f(self, a: List[int], b: str):", public_test_cases=case)
    row["metadata"] = json.dumps({"func_name": "f"})
    task = load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", row))
    head = "class Solution:\n    def f(self, a: List[int], b: str):\n        "
    right, wrong = fenced(f"{head}print('noise')\n        return a + [len(a)]"), fenced(f"{head}return a")
    assert await values(task, right, wrong, fenced("import os\nprint('[1, 2, 2]')\nos._exit(0)")) == [1, 0, 0]


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("print(Counter('aab')['a'], floor(2.5), datetime.date(2024, 1, 2).year)", 1),  # names of star imports
        ("def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\nprint(2, 2, 2024 + depth(9000) - 9000)", 1),
        ("print('2 2 2024')\nexit(1)", 1),
        ("print('2.0 2e0  2024')", 1),
        ("print('2 2 2024.0000001')", 0),
        ("print('2 2 2024\\n')\nprint('')", 1),
        ("print('2 2')\nprint('2024')", 0),
        ("print('two 2 2024')", 0),
    ],
)
async def test_livecodebench_s_own_rules_decide(tmp_path: Path, program: str, value: int) -> None:
    case = json.dumps([{"input": "", "output": "2 2 2024\n", "testtype": "stdin"}])
    row = livecode("[]", public_test_cases=case)
    task = load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", row))
    assert await values(task, fenced(program)) == [value]


async def test_livecodebench_takes_the_last_closed_block_only(tmp_path: Path) -> None:
    task = load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", livecode("[]")))
    right, first = "print(sum(map(int, input().split())))", fenced("print(0)")
    replies = (f"{first}\nBetter:\n{fenced(right)}", right, f"```python\n{right}")
    assert await values(task, *replies) == [1, 0, 0]


@pytest.mark.parametrize(
    ("result", "value"),
    [("(1, 2)", 1), ("[1.0, 2]", 1), ("[(1, 2)]", 0), ("{1: 2}", 0), ("[1, 2, 3]", 0)],
)
async def test_a_tuple_counts_as_a_list_only_as_the_whole_result(tmp_path: Path, result: str, value: int) -> None:
    case = json.dumps([{"input": "1", "output": "[1, 2]", "testtype": "functional"}])
    row = livecode("[]", starter_code="class Solution:", public_test_cases=case)
    row["metadata"] = json.dumps({"func_name": "f"})
    task = load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", row))
    assert await values(task, fenced(f"class Solution:\n    def f(self, n): return {result}")) == [value]


def test_pickled_tests_that_would_run_code_are_rejected(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "evil",))

    with pytest.raises(ConfigError, match="which no plain text does"):
        load_task("livecodebench", path=write_rows(tmp_path / "l.jsonl", livecode(packed(Evil()))))
    assert not (tmp_path / "evil").exists()


async def test_bigcodebench_needs_every_test_to_pass(tmp_path: Path) -> None:
    tests = (
        "import unittest\nclass TestCases(unittest.TestCase):\n"
        "    def test_one(self): self.assertEqual(add(1, 2), 3)\n"
        "    def test_two(self): self.assertEqual(add(2, 2), 4)\n"
    )
    row = {"task_id": "BigCodeBench/1", "complete_prompt": "def add(a, b):", "test": tests}
    task = load_task("bigcodebench", path=write_rows(tmp_path / "b.jsonl", row))
    wrong = "def add(a, b): return 3"
    early = "import sys\ndef add(a, b): sys.exit(0)"
    assert await values(task, ADD, wrong, early, "import os\nos._exit(0)", "print('OK')") == [1, 0, 0, 0, 0]


async def test_bigcodebench_runs_the_solution_after_the_prompt_s_code_and_not_as_the_main_module(
    tmp_path: Path,
) -> None:
    tests = (
        "import unittest\nclass TestCases(unittest.TestCase):\n"
        "    def test_root(self): self.assertEqual(root(4), 2)\n"
        "    def test_file(self):\n        open('note.txt', 'w').write('x')\n"
        "        self.assertTrue(os.path.exists('note.txt'))\n"
        "    @unittest.skip('not here')\n    def test_skipped(self): self.fail()\n"
        "class Other(unittest.TestCase):\n    def test_ignored(self): self.fail()\n"
    )
    prompt = "import math\ndef root(n):\n"
    row = {"task_id": "BigCodeBench/2", "complete_prompt": prompt, "code_prompt": prompt, "test": tests}
    task = load_task("bigcodebench", path=write_rows(tmp_path / "b.jsonl", row))
    solution = "def root(n):\n    return math.sqrt(n)\nif __name__ == '__main__':\n    raise SystemExit(1)"
    assert await values(task, fenced(solution), fenced("def root(n):\n    return n")) == [1, 0]


async def test_a_jsonl_file_supports_every_scoring_method(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "Capital of France?", "answer": "Paris"},
        {"question": "About how many?", "answer": "100", "scoring": "numeric", "tolerance": 0.1},
        {"question": "One half?", "answer": "1/2", "scoring": "math"},
        {"question": "A date?", "answer": r"\d{4}-\d\d-\d\d", "scoring": "regex"},
        {"question": "Write add.", "scoring": "code", "tests": "assert add(1, 2) == 3", "domain": "code"},
        {"question": "Echo.", "scoring": "code", "cases": [{"stdin": "a\n", "stdout": "a"}]},
        {"question": "Largest city of the USA?", "answer": ["NYC", "New York"], "scoring": "includes"},
        {"question": "Which kind?", "answer": "billing", "choices": ["billing", "technical"]},
        {"question": "When?", "answer": "2026-03-05", "scoring": "date"},
        {"question": "Who?", "answer": {"name": "Ann", "age": 3}, "scoring": "json"},
        {"question": "Greet.", "rubric": "Is polite."},
        {"question": "Why?", "answer": "because", "scoring": "judge", "id": "why"},
    ]
    task = load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", *rows), judge=ScriptedModel("yes"))
    assert (task.name, task.samples[-1].id, task.samples[0].id) == ("mine", "why", "0")
    assert [sample.details.get("judge") for sample in task.samples[-2:]] == ["scripted:scripted"] * 2
    right = ["Paris", "95", r"\boxed{0.5}", "on 2026-01-31", ADD, "print(input())"]
    right += ["It is New York.", "The kind is: billing.", "5 March 2026", '{"age": 3, "name": "Ann"}']
    right += ["Welcome!", "Because it is."]
    wrong = ["Rome", "80", r"\boxed{0.4}", "never", "def add(a, b): return 4", "print('b')"]
    wrong += ["Boston", "technical", "2026-05-03", '{"age": 3}', "", ""]
    assert [(await task.score(sample, reply)).value for sample, reply in zip(task.samples, right, strict=True)] == [
        1
    ] * 12
    assert [(await task.score(sample, reply)).value for sample, reply in zip(task.samples, wrong, strict=True)] == [
        0
    ] * 12


async def test_the_choices_of_a_file_are_all_answers_with_that_scoring(tmp_path: Path) -> None:
    table = "question,scoring,answer\nLate?,choice,billing\nBroken?,choice,technical\nOther?,exact,other\n"
    (tmp_path / "q.csv").write_text(table)
    task = load_task("jsonl", path=tmp_path / "q.csv")
    assert [sample.details.get("choices") for sample in task.samples] == [("billing", "technical")] * 2 + [None]
    assert (await task.score(task.samples[0], "It is billing, and no other.")).right
    assert not (await task.score(task.samples[0], "It is billing or technical.")).right
    part = load_task("jsonl", path=tmp_path / "q.csv", split="train")
    assert {sample.details.get("choices") for sample in part.samples} <= {("billing", "technical"), None}


def test_a_single_label_in_a_file_is_no_choice(tmp_path: Path) -> None:
    rows = ({"question": str(number), "answer": "yes", "scoring": "choice"} for number in range(3))
    with pytest.raises(ConfigError, match=r"the answer 'yes'; write the other labels, too, such as \"choices\": \["):
        load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", *rows))


async def test_json_in_a_cell_of_a_table_is_compared_as_json(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('question,scoring,answer\nWho?,json,"{""age"": 3}"\n')
    task = load_task("jsonl", path=tmp_path / "q.csv")
    assert await values(task, '{"age": 3.0}', "3") == [1, 0]


@pytest.mark.parametrize("answer", [[1, "a"], 3, True, None, {"a": None}, '"text"', "[1]"])
async def test_json_answers_may_be_of_any_kind(answer: Any, tmp_path: Path) -> None:
    row = {"question": "q", "answer": answer, "scoring": "json"}
    if answer is None:
        row["answer"] = "null"
    task = load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", row))
    assert await values(task, task.samples[0].answer, '{"other": 1}') == [1, 0]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "q"}, "scoring 'exact' needs an answer, or a rubric for a judge"),
        ({"question": "q", "scoring": "code"}, "needs tests or cases"),
        (
            {"question": "q", "answer": "x", "scoring": "numeric"},
            "needs a number with a decimal point as answer, such as 3.5 or 1,290, not 'x'",
        ),
        ({"question": "q", "answer": "3,5", "scoring": "numeric"}, "row 1 of .* such as 3.5 or 1,290, not '3,5'"),
        ({"question": "q", "answer": "0,125", "scoring": "numeric"}, "row 1 of .* not '0,125'"),
        ({"question": "q", "answer": ["1", "x"], "scoring": "numeric"}, "row 1 of .* not 'x'"),
        ({"question": "q", "answer": "3/5/2026", "scoring": "date"}, "such as 2026-03-05, not '3/5/2026'"),
        ({"question": "q", "answer": "Ann", "scoring": "json"}, "needs JSON as answer, such as .*, not 'Ann': "),
        ({"question": "q", "answer": '{"a": 1, "a": 2}', "scoring": "json"}, "a key occurs twice"),
        ({"question": "q", "answer": {"age": 3}}, "answer: write text or a number, .* or scoring 'json', not {'age'"),
        ({"question": "q", "answer": True}, "answer: write text or a number, .* or scoring 'json', not True"),
        ({"question": "q", "answer": ["x", " "]}, "answer: one of the accepted answers is empty; remove it"),
        ({"question": "q", "answer": []}, "scoring 'exact' needs an answer"),
        ({"question": "q", "answer": ["x", "y"], "scoring": "judge"}, "'judge' compares with one answer"),
        ({"question": "q", "answer": "x", "choices": ["y", "z"]}, "the answer 'x' is none of the choices: 'y', 'z'"),
        ({"question": "q", "answer": "x", "choices": ["x"]}, "choices: write at least 2 items"),
        ({"question": "q", "answer": "x", "choices": ["x", ""]}, "choices must be different labels .* not 'x', ''"),
        ({"question": "q", "answer": "x", "choices": ["x", "X"]}, "choices must be different labels .* not 'x', 'X'"),
        ({"question": "q", "answer": "...", "scoring": "includes"}, "'includes' needs an answer with letters .* '...'"),
        (
            {"question": "q", "answer": "x", "choices": ["x", "y"], "scoring": "exact"},
            "choices belong to scoring 'choice', not 'exact'",
        ),
        ({"question": "q", "answer": "x", "Labels": ["x"]}, "labels: there is no such setting; rename it to choices"),
        ({"question": "q", "answer": "(", "scoring": "regex"}, "row 1 of .* is no regular expression"),
        ({"question": "q", "answer": "x", "scoring": "vibes"}, "scoring: write 'exact'"),
        ({"question": " ", "answer": "x"}, "row 1 of .* question: missing"),
        ({"question": "q", "answer": "  "}, "scoring 'exact' needs an answer"),
        ({"prompt": "q", "expected": "x"}, "the names must be question, answer and others, not prompt, expected"),
        (
            {"question": "q", "answer": "x", "colour": "red"},
            "colour: there is no such setting; write one of question, answer, scoring, rubric, id, domain",
        ),
        (
            {"question": "q", "answer": "x", "Kategorie": "red"},
            "kategorie: there is no such setting; rename it to domain",
        ),
        ({"question": "q", "Expected answer": "x"}, "expected answer: there is no such setting; rename it to answer"),
        ({"question": "q", "answer": "x", "Notes": "!"}, "notes: there is no such setting; remove it"),
        ({"question": "q", "scoring": "judge"}, "scoring 'judge' needs an answer or a rubric"),
        ({"question": "q", "answer": "x", "rubric": "r"}, "a rubric needs scoring 'judge' and no answer"),
        ({"question": "q", "answer": "x", "scoring": "judge"}, "needs a model: judge='provider:model', or --judge"),
    ],
)
def test_an_invalid_line_is_reported_with_its_problem(row: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", row))


@pytest.mark.parametrize("answer", ["1,290", "-1,290,000.5", "3.5", ".5", "1e6", 3.5])
async def test_a_numeric_answer_may_have_commas_between_thousands(answer: str | float, tmp_path: Path) -> None:
    row = {"question": "q", "answer": answer, "scoring": "numeric"}
    task = load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", row))
    assert await values(task, str(answer)) == [1]


def test_a_table_may_capitalize_its_names_and_have_long_cells(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(f"Question , Answer\n{'long ' * 100_000},yes\n")
    (sample,) = load_task("jsonl", path=tmp_path / "mine.csv").samples
    assert (len(sample.question), sample.answer) == (500_000, "yes")


def test_numbers_are_read_as_text(tmp_path: Path) -> None:
    row = {"question": "Six times seven?", "answer": 42, "group": 7, "domain": 1, "id": 3}
    (sample,) = load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", row)).samples
    assert (sample.answer, sample.details["group"], sample.domain, sample.id) == ("42", "7", "1", "3")


def test_an_invalid_line_of_a_questions_file_does_not_question_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scoring 'exact' needs an answer, or a rubric for a judge$"):
        load_task("jsonl", path=write_rows(tmp_path / "mine.jsonl", {"question": "q"}))


def test_all_wrong_rows_of_a_table_are_listed_by_the_numbers_of_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('question,answer\n"two\nlines",1\n\nno answer,\n,no question\nright,2\n')
    with pytest.raises(ConfigError) as raised:
        load_task("jsonl", path=tmp_path / "q.csv")
    assert str(raised.value) == (
        f"row 4 of {str(tmp_path / 'q.csv')!r} is not as expected: scoring 'exact' needs an answer, or a rubric for "
        "a judge; row 5 is not as expected: question: missing"
    )


def test_a_folder_and_a_file_of_another_format_are_refused_with_the_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it is a folder; name a file of .* load_from_disk\(.*\).to_parquet\('quest"):
        load_task(str(tmp_path))
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(b'{"question": "q", "answer": "a"}'))
    with pytest.raises(ConfigError, match=r"is not text in UTF-8; the formats are JSON Lines, CSV and Parquet$"):
        load_task("jsonl", path=tmp_path / "q.jsonl.gz")


def test_a_wrong_row_of_each_kind_is_described(tmp_path: Path) -> None:
    answers = ["numeric,about 5", "numeric,6 or so", "exact,right", "judge,in other words", "judge,as well", "regex,("]
    rows = "".join(f"q{number},{answer}\n" for number, answer in enumerate(answers))
    (tmp_path / "q.csv").write_text(f"question,scoring,answer\n{rows}")
    with pytest.raises(ConfigError) as raised:
        load_task("jsonl", path=tmp_path / "q.csv")
    reasons = str(raised.value).split("; row ")
    assert "not 'about 5'" in reasons[0]
    assert reasons[1].startswith("5 is not as expected: scoring 'judge' needs a model")
    assert reasons[2].startswith("7 is not as expected: '(' is no regular expression")
    assert reasons[2].endswith("; 2 more rows can't be used either: 3, 6")


def test_a_quote_that_nothing_ends_takes_no_further_rows_with_it(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('question,answer\none,"1"\ntwo,"2\nthree,3\nfour,4\n')
    with pytest.raises(ConfigError, match=r"row 3 of .*q.csv' begins a text with a double quote, and none ends it"):
        load_task("jsonl", path=tmp_path / "q.csv")


def test_a_list_of_wrong_rows_ends_after_ten_more(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mine.jsonl", *({"question": "q"} for _ in range(20)))
    with pytest.raises(
        ConfigError, match=r"; 19 more rows can't be used either: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, \.\.\.$"
    ):
        load_task("jsonl", path=path)


@pytest.mark.parametrize("name", ["q.xlsx", "q.csv"])
def test_a_spreadsheet_and_a_table_in_another_encoding_say_how_to_save_them(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes("question;answer\nWie heißt das?;Tür\n".encode("cp1252"))
    with pytest.raises(ConfigError, match=r'in a spreadsheet, save the questions as "CSV UTF-8"'):
        load_task("jsonl", path=tmp_path / name)


def test_a_missing_or_malformed_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row 1 of .* has no 'problem'; is it really aime25"):
        load_task("aime25", path=write_rows(tmp_path / "x.jsonl", {"question": "q"}))
    with pytest.raises(ConfigError, match="can't read"):
        load_task("aime25", path=tmp_path / "nowhere.jsonl")
    (tmp_path / "unclosed.jsonl").write_text('{"question": "q", "answer": "a"}\n{"question": "q"\n')
    with pytest.raises(ConfigError, match=r"line 2 of .* is not JSON: Expecting ',' delimiter at column 17$"):
        load_task("jsonl", path=tmp_path / "unclosed.jsonl")
    (tmp_path / "bad.jsonl").write_text("{]")
    with pytest.raises(ConfigError, match=r"line 1 of .* is not JSON"):
        load_task("aime25", path=tmp_path / "bad.jsonl")
    (tmp_path / "list.jsonl").write_text("[1]")
    with pytest.raises(ConfigError, match="is no JSON object"):
        load_task("aime25", path=tmp_path / "list.jsonl")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_questions_is_an_error_that_says_how_to_write_them(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps([{"question": "1 + 1?", "answer": "2"}], indent=indent))
    with pytest.raises(ConfigError, match=r"line 1 .*; write one object per line, without brackets around them$"):
        load_task(f"jsonl:{path}")


def test_a_split_has_its_share_by_the_hash_of_ids(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", *({"id": i, "problem": "p", "answer": i} for i in range(200)))
    parts = [
        {sample.id for sample in load_task("aime25", path=path, split=split).samples}
        for split in ("train", "validation", "heldout")
    ]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 200
    assert len(parts[0]) > len(parts[1])


def test_contrast_sets_stay_in_one_split(tmp_path: Path) -> None:
    lines = ({"question": "q", "answer": "a", "contrast": f"set {number // 3}"} for number in range(180))
    path = write_rows(tmp_path / "a.jsonl", *lines)
    parts = [{sample.contrast for sample in load_task("jsonl", path=path, split=split).samples} for split in SHARES]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts)) == 60


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.jsonl", '{"question": "1 + 1", "answer": "2"}\r\n'),
        ("q.csv", "question,answer\r\n1 + 1,2\r\n"),
        ("q.csv", "question;answer;tolerance\r\n1 + 1;2;\r\n"),
        ("q.csv", "sep=;\r\nquestion;answer\r\n1 + 1;2\r\n"),
        ("q.csv", "question;answer\r\n1 + 1;2;;;\r\n;;;;\r\n;;;;\r\n"),
        ("q.tsv", "question\tanswer\tscoring\r\n1 + 1\t2\t\r\n"),
        ("Q.CSV", "question,answer\r\n1 + 1,2\r\n"),
    ],
)
def test_files_as_windows_programs_write_them_are_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig", newline="")
    (sample,) = load_task("jsonl", path=tmp_path / name).samples
    assert (sample.question, sample.answer) == ("1 + 1", "2")


def test_a_comma_that_is_not_quoted_is_explained(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,answer\nWhat is 2, times 3?,6\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"row 2 of .*, which begins with 'What is 2', has more cells .* ',' in double quotes"
    ):
        load_task("jsonl", path=tmp_path / "q.csv")
