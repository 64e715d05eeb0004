"""`ask`: an answer on stdout, everything else on stderr, and an exit code that says how it went."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from command_line import Service
from core.capitals import capital_router
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage

Cli = Callable[..., Result]
Pool = Callable[..., str]

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_answer_alone_goes_to_stdout(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool(), "What is 6 * 7?")

    assert (result.exit_code, result.stdout) == (0, "It is [bold]42[/bold].\n")


def test_progress_and_summary_go_to_stderr(cli: Cli, pool: Pool) -> None:
    output = cli("ask", "--pool", pool(), "What is 6 * 7?").stderr.splitlines()

    assert output[0] == "planning with openai:plan-three"
    planned = output.index("planned: 3 steps")  # a step may start before its plan is complete
    assert output[planned + 1 : planned + 4] == [
        "  1. solver: Solve it.",
        "  2. second: Solve it otherwise.",
        "  3. solver: Compare the two. (reads 1, 2)",
    ]
    assert output[-5].startswith("╭── 1 ✓ solver  Solve it.")
    assert output[-3].startswith("╰┴▶ 3 ✓ solver  Compare the two.")
    assert output[-1].startswith("3 steps · 2 workers · 440 tokens · $0.0011 · ")
    assert "critical path" in output[-1]


def test_a_cost_that_is_not_known_is_said_to_be_a_lower_bound(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool(price=""), "What is 6 * 7?")

    assert "at least $0 (4 calls unpriced)" in result.stderr


def printed(result: Result) -> tuple[Trace, str, Usage]:
    """The trace that `--json` printed, and the text and usage before it."""
    content = json.loads(result.stdout)
    text, usage = content.pop("text"), content.pop("usage")
    return Trace.model_validate_json(json.dumps(content)), text, Usage.model_validate_json(json.dumps(usage))


def test_json_is_the_text_the_usage_and_the_trace_and_nothing_else(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--json", "--pool", pool(), "What is 6 * 7?")
    trace, text, usage = printed(result)

    assert list(json.loads(result.stdout))[:2] == ["text", "usage"]
    assert text == trace.text == "It is [bold]42[/bold]."
    assert usage == trace.usage
    assert usage.calls == 4


def test_what_json_prints_can_be_shown_again(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--json", "--pool", pool(), "What is 6 * 7?")

    assert "It is [bold]42[/bold]." in cli("trace", "show", "-", text=result.stdout).stdout


def test_quiet_prints_the_answer_alone(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--quiet", "--pool", pool(), "What is 6 * 7?")

    assert (result.stdout, result.stderr) == ("It is [bold]42[/bold].\n", "")
    failed = cli("ask", "-q", "--pool", pool("bad-request", planner="plan-one"), "Hello?")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: there is no answer")


def test_system_message_and_schema_reach_the_worker_of_the_answer(
    cli: Cli, pool: Pool, service: Service, tmp_path: Path
) -> None:
    schema = tmp_path / "person.json"
    schema.write_text(
        '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}', "utf-8-sig"
    )
    planned = pool(planner="plan-one")
    cli("ask", "--pool", planned, "--system", "Be brief.", "--schema", str(schema), "Who wrote Faust?")

    body = next(wire.body for wire in service.requests if wire.body["model"] == "solver")
    assert {"role": "system", "content": "Be brief."} in body["messages"]
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["name"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reply_that_does_not_match_the_schema_is_replaced(
    cli: Cli, pool: Pool, service: Service, tmp_path: Path, options: list[str]
) -> None:
    schema = tmp_path / "answer.json"
    schema.write_text('{"type": "object", "required": ["answer"]}')
    result = cli("ask", "--pool", pool("solver", "json", planner="plan-one"), "--schema", str(schema), *options, "?")
    assert (json.loads(result.stdout)["text"] if options else result.stdout.strip()) == '{"answer": 42}'
    assert service.asked()[-2:] == ["solver", "json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is no JSON: "),
        ("[" * 100_000 + "]" * 100_000, "is no JSON: maximum recursion depth exceeded"),
        ("[]", "is no JSON schema: it must be an object"),
    ],
    ids=["broken", "too deep", "no object"],
)
def test_a_wrong_schema_is_named(cli: Cli, pool: Pool, tmp_path: Path, content: str, reason: str) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(content)
    result = cli("ask", "--pool", pool(), "--schema", str(schema), "Hello?")

    assert result.exit_code == 2
    assert reason in result.stderr


def test_models_can_be_named_instead_of_a_pool(
    cli: Cli, pool: Pool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    result = cli("ask", "--model", "openai:plan-three", "-m", "openai:second", "What is 6 * 7?")

    assert result.exit_code == 0, result.stderr
    assert set(service.asked()) == {"plan-three", "second"}
    both = cli("ask", "--model", "openai:second", "--pool", pool(), "What is 6 * 7?")
    assert (both.exit_code, "--pool and --model both name the workers" in both.stderr) == (2, True)


def test_json_stays_whole_when_there_is_no_answer(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--json", "--pool", pool("bad-request", planner="plan-one"), "Hello?")

    assert result.exit_code == 1
    assert printed(result)[0].completion is None


def test_json_holds_no_raw_control_character_and_loses_none(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--json", "--pool", pool("rude", planner="plan-one"), "Hello?")

    assert not set(result.stdout) & set("\x1b\x9b\x07\u202e\r")
    completion = printed(result)[0].completion
    assert completion is not None
    assert "\x9b31m \u202ethree" in completion.text


def test_a_reply_can_neither_steer_the_terminal_nor_mark_text_up(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool("rude", planner="plan-rude"), "Hello?")

    assert result.stdout == "one two threefour\n"
    assert "1. rude: Solve it." in result.stderr
    assert "\x1b" not in result.stderr


def test_the_question_may_come_from_stdin(cli: Cli, pool: Pool, service: Service) -> None:
    for arguments in ((), ("-",)):
        result = cli("ask", "--pool", pool("echo", planner="plan-one"), *arguments, text="What is rain?\n")
        assert "What is rain?" in result.stdout


def test_an_empty_question_is_a_mistake(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool(), text=" \n")

    assert (result.exit_code, result.stderr) == (2, "error: the question is empty; write a question\n")


def test_images_pdfs_and_texts_go_with_the_question(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    files = {"a.png": PNG, "b.pdf": b"%PDF-1.7", "c.py": b"print('hello from c')"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    attached = [part for name in files for part in ("--file", str(tmp_path / name))]
    seeing = pool("image", planner="plan-one", options=', dialect = "openai"')

    assert cli("ask", "--pool", seeing, *attached, "Look.").stdout == "I see image/png, application/pdf\n"
    assert "hello from c" in cli("ask", "--pool", pool("echo", planner="plan-one"), *attached[-2:], "Look.").stdout
    assert (
        "[stdin]\npiped" in cli("ask", "--pool", pool("echo", planner="plan-one"), "-f", "-", "?", text="piped").stdout
    )


def test_an_image_or_a_pdf_may_come_from_stdin(cli: Cli, pool: Pool) -> None:
    seeing = pool("image", planner="plan-one", options=', dialect = "openai"')

    assert cli("ask", "--pool", seeing, "-f", "-", "Look.", text=PNG).stdout == "I see image/png\n"
    assert cli("ask", "--pool", seeing, "-f", "-", "Look.", text=b"%PDF-1.7").stdout == "I see application/pdf\n"


def test_files_that_cannot_be_sent_are_named(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\xff\xfe")

    unreadable = cli("ask", "--pool", pool(), "-f", str(tmp_path / "a.zip"), "Look.")
    missing = cli("ask", "--pool", pool(), "-f", "missing.png", "Look.")
    twice = cli("ask", "--pool", pool(), "-f", "-", text="Look.")

    assert (unreadable.exit_code, missing.exit_code, twice.exit_code) == (2, 2, 2)
    assert "not an image, a PDF or UTF-8 text" in unreadable.stderr
    assert "can't read 'missing.png': No such file" in missing.stderr
    assert "stdin can't be both" in twice.stderr


def test_only_the_workers_that_are_named_work(cli: Cli, pool: Pool, service: Service) -> None:
    assert cli("ask", "--pool", pool(), "--worker", "second", "--steps", "1", "Hello?").stdout == "It is 43.\n"
    assert cli("ask", "--pool", pool(), "--deny", "solver", "--steps", "1", "Hello?").stdout == "It is 43.\n"

    assert "solver" not in service.asked()


@pytest.mark.parametrize("option", ["--worker", "--deny"])
def test_a_worker_that_nobody_knows_is_a_mistake(cli: Cli, pool: Pool, option: str) -> None:
    result = cli("ask", "--pool", pool(), option, "solver", option, "sovler", "Hello?")

    assert (result.exit_code, result.stderr) == (
        2,
        f"error: {option} names 'sovler', but there are only solver, second\n",
    )


def test_a_policy_that_leaves_nobody_is_a_refusal(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("ask", "--pool", pool(), "--deny", "*", "Hello?")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: the policy leaves no worker to do anything")
    assert service.requests == []


def test_a_budget_that_is_too_small_refuses_before_any_call(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("ask", "--pool", pool(), "--usd", "0.000001", "Hello?")

    assert (result.exit_code, result.stdout, service.requests) == (1, "", [])
    last = result.stderr.splitlines()[-1]
    assert "nothing was planned, so the best worker answers alone: 1 step" in result.stderr
    both = "a call to openai:plan-three and then one to openai:solver may cost up to $0.0"
    assert last.startswith(f"error: refused before anything was spent: {both}")
    told = re.search(r", but --usd 0.000001 leaves \$0.000001; write (--usd) ([\d.]+) or more$", last)
    assert told is not None
    assert cli("ask", "--pool", pool(), *told.groups(), "Hello?").stderr.count("before anything was spent") == 0
    assert service.requests != []


def test_an_unknown_price_says_what_to_write_into_the_pool_file(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("ask", "--pool", pool(price=""), "--usd", "1", "Hello?")

    assert (result.exit_code, service.requests) == (1, [])
    last = result.stderr.splitlines()[-1]
    assert "so --usd can't be enforced; write its price in" in last
    assert "limits.usd" not in result.stderr
    assert "in a pool file as price = { input = 2.5, output = 10 }" in last


def test_limits_and_profile_reach_the_run(cli: Cli, pool: Pool) -> None:
    limits = ["--usd", "$1.5", "--seconds", "30", "--tokens", "99999", "--rounds", "2", "--steps", "4"]
    chosen = json.loads(cli("ask", "--json", "--pool", pool(), *limits, "Hello?").stdout)["limits"]
    mini = json.loads(cli("ask", "--json", "--pool", pool(), "--profile", "mini", "Hello?").stdout)["limits"]

    assert {name: chosen[name] for name in ("usd", "seconds", "tokens", "rounds", "steps")} == {
        "usd": "1.5",
        "seconds": 30.0,
        "tokens": 99999,
        "rounds": 2,
        "steps": 4,
    }
    assert (mini["steps"], mini["seconds"]) == (2, 60.0)


@pytest.mark.parametrize(
    "arguments",
    [("--usd", "cheap"), ("--usd", "-1"), ("--seconds", "0"), ("--steps", "0"), ("--profile", "maxi")],
)
def test_an_option_that_makes_no_sense_is_a_mistake(cli: Cli, arguments: tuple[str, str]) -> None:
    result = cli("ask", *arguments, "Hello?")

    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.stderr


def test_no_answer_is_said_in_one_line_with_what_was_spent(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool("bad-request", planner="plan-one"), "Hello?")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("error: there is no answer: step 1: bad-request")
    assert "spent so far: $0.00028" in result.stderr.splitlines()[-1]


def test_what_went_wrong_on_the_way_is_told(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool("bad-request", "second", planner="plan-one"), "Hello?")

    assert (result.exit_code, result.stdout) == (0, "It is 43.\n")
    assert "! step 1: bad-request: " in result.stderr
    assert "! step 1: second replaced bad-request" in result.stderr


def test_a_planner_that_writes_no_plan_is_reported_once_however_often_it_was_asked(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--pool", pool(planner="no-plan"), "Hello?")

    assert result.exit_code == 0
    assert result.stderr.count("no plan: neither the lists") == 1
    assert "(5 times)" in " ".join(result.stderr.split())
    assert "no valid plan, so the best worker answers alone" in result.stderr


def test_show_trace_tells_the_whole_run_on_stderr(cli: Cli, pool: Pool) -> None:
    result = cli("ask", "--show-trace", "--pool", pool(), "Hello?")

    assert result.stdout == "It is [bold]42[/bold].\n"
    assert "Two work, one compares." in result.stderr
    assert "worker    calls  input  cached  output" in result.stderr


def test_a_saved_trace_is_the_run(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    result = cli("ask", "--save", str(path), "--pool", pool(), "Hello?")

    trace = Trace.model_validate_json(path.read_text())
    assert trace.completion is not None
    assert f"rl-conductor trace show {path}" in result.stderr


def test_a_trace_that_cannot_be_kept_is_found_out_before_anything_is_paid(
    cli: Cli, pool: Pool, service: Service, tmp_path: Path
) -> None:
    result = cli("ask", "--save", str(tmp_path / "missing" / "run.json"), "--pool", pool(), "Hello?")

    assert (result.exit_code, service.requests) == (2, [])
    assert "can't write" in result.stderr


def test_a_pool_file_that_is_wrong_is_a_mistake(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text("workers = 3")

    result = cli("ask", "--pool", str(path), "Hello?")

    assert result.exit_code == 2
    assert result.stderr.startswith("error: the pool file")
    assert result.stderr.count("\n") == 1


def test_a_simple_request_is_one_call_and_its_routing_is_told(cli: Cli, pool: Pool, service: Service) -> None:
    path = Path(pool())
    capital_router("solver", model="openai:solver").write(path.parent / "router.json")
    path.write_text(f'router = "router.json"\n{path.read_text()}')

    result = cli("ask", "--pool", str(path), "--show-trace", "What is the capital of France?")

    assert result.stdout == "It is [bold]42[/bold].\n"
    assert service.asked() == ["solver"]
    told = " ".join(result.stderr.split())
    assert "simple request, no planning router: one call of solver: right with probability 0.998, from 0.900" in told


def test_a_server_that_is_down_is_named_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_conductor.calls.model_call.MAX_BACKOFF", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    path, server = tmp_path / "pool.toml", 'options = { base_url = "http://127.0.0.1:9/v1" }'
    path.write_text(f'[workers.a]\nmodel = "openai:x"\n{server}\n[workers.b]\nmodel = "openai:y"\n{server}\n')

    result = cli("ask", "--pool", str(path), "Hello?")

    assert result.exit_code == 1
    assert result.stderr.count("can't reach http://127.0.0.1:9/v1") == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: there is no answer: can't reach http://127.0.0.1:9/v1: ")
    assert last.endswith("; nothing was spent")
