from __future__ import annotations

import asyncio
import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.runs import busy, plan, pool_of
from rl_conductor import Conductor, Policy, ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store.audit import BEGINNING, Chain, Ended, Record, digest_of, read_export, record_of

SECRET = "sk-secret-word"
TWO = plan((0, f"Draft {SECRET}.", []), (1, "Say it.", ["all"]))


@cache
def trace(number: int = 0) -> Trace:
    """A run whose first worker fails once; everything said in it is secret."""
    made = Conductor(ScriptedModel(TWO), pool_of(a=[busy(None), f"a {SECRET}"], b=f"b {SECRET}"))  # type: ignore[arg-type]
    return asyncio.run(made.run(f"Say {SECRET} {number} ü.", policy=Policy(final="b"), run_id=f"run-{number}"))


def record(number: int = 0, *, sequence: int = 1, previous: str = BEGINNING) -> Record:
    made = trace(number)
    ended = Ended(run=made.id, key="red", api="chat", model="m", status="done", trace=digest_of(made.model_dump_json()))
    return record_of(made, ended, sequence=sequence, previous=previous)


@cache
def export(length: int) -> bytes:
    """A chain of so many records, as a file."""
    chain, lines = Chain(), []
    for number in range(length):
        lines.append(record(number % 3, sequence=number + 1, previous=chain.head).line)
        chain.read(lines[-1])
    return "".join(f"{line}\n" for line in (*lines, chain.seal)).encode()


async def test_a_record_contains_the_calls_inside_of_a_conductor_in_the_pool() -> None:
    one = plan((0, "Ask the team.", []))
    team = Conductor(ScriptedModel([TWO], name="inner"), pool_of(a="from a", b="from b"), name="team")
    ended = Ended(run="r", key="k", api="chat", model="m", status="done", trace=None)
    nested = await Conductor(ScriptedModel([one]), pool_of(team=team)).run("Hi.")
    plain = await Conductor(ScriptedModel([one]), pool_of(a="from a")).run("Hi.")

    (call,) = record_of(nested, ended, sequence=1, previous=BEGINNING).rounds[0].steps[0].calls

    assert [inner.requested for inner in call.inside] == ["scripted:inner", "scripted:a", "scripted:b"]
    assert all(inner.started_ms >= call.started_ms for inner in call.inside)
    line = record_of(plain, ended, sequence=1, previous=BEGINNING).line
    assert "inside" not in line, "records of earlier versions keep their hashes"


def test_a_record_says_who_decided_what() -> None:
    made = record()
    assert (made.run, made.key, made.status, made.answered_by) == ("run-0", "red", "done", (0, 1))
    (one,) = made.rounds
    assert (one.source, one.plan) == ("planner", digest_of(trace(0).rounds[0].plan.text))
    first, last = one.steps
    assert [(call.worker, call.requested, call.answered, call.outcome) for call in first.calls] == [
        ("a", "scripted:a", None, "error"),
        ("a", "scripted:a", "scripted:a", "ok"),
    ]
    assert first.calls[0].shown == trace(0).rounds[0].results[0].calls[0].request_fingerprint
    assert (last.worker, last.planned_worker, last.access) == ("b", "b", (0,))
    assert last.reply == made.answer == digest_of(trace(0).text)
    assert made.used.input_tokens == trace(0).usage.input_tokens
    assert made.trace == digest_of(trace(0).model_dump_json())


def test_no_word_that_was_said_and_no_secret_is_in_a_record() -> None:
    line = record().line
    assert SECRET in trace(0).model_dump_json()
    assert SECRET not in line
    assert trace(0).delimiter_key not in line


def test_a_record_is_canonical_json_of_whole_numbers() -> None:
    line = record().line
    assert "\n" not in line
    assert line == json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    json.loads(line, parse_float=lambda number: pytest.fail(f"a number that may be written in several ways: {number}"))
    assert Record.model_validate_json(line).line == line


def test_a_whole_chain_is_found_whole() -> None:
    for length in (0, 1, 4):
        chain = read_export(export(length))
        assert (chain.broken, chain.records) == (None, length)
    assert read_export(export(0)).head == BEGINNING


@given(st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    content = bytearray(export(4))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    assert read_export(bytes(content)).broken is not None


@given(st.data())
def test_any_cut_is_found(data: st.DataObject) -> None:
    content = export(4)
    begin = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(begin + 1, len(content)))
    assert read_export(content[:begin] + content[end:]).broken is not None


@given(st.data())
def test_any_added_text_is_found(data: st.DataObject) -> None:
    content = export(3)
    place = data.draw(st.integers(0, len(content)))
    added = data.draw(st.binary(min_size=1, max_size=9))
    assert read_export(content[:place] + added + content[place:]).broken is not None


@given(st.permutations(range(5)))
def test_any_other_order_is_found(order: list[int]) -> None:
    lines = export(5).decode().splitlines(keepends=True)
    again = "".join([*(lines[place] for place in order), lines[-1]]).encode()
    assert (read_export(again).broken is None) is (order == sorted(order))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines[:1] + lines[2:], "record 2 is missing or out of place"),
        (lambda lines: [lines[0].replace("red", "blu"), *lines[1:]], "record 1 was changed, or this one"),
        (lambda lines: [*lines[:1], "x\n", *lines[2:]], "record 2 can't be read"),
        (lambda lines: [*lines[:1], "[" * 100_000 + "\n", *lines[2:]], "record 2 can't be read"),
        (lambda lines: lines[:-1], "the end is missing"),
        (lambda lines: [*lines[:-2], lines[-2].replace("red", "blu"), lines[-1]], "the end is missing or was changed"),
        (lambda _: [], "the end is missing"),
        (lambda lines: [*lines[:1], "\udcff\n", *lines[1:]], "it is not text"),
    ],
)
def test_what_is_broken_is_named(change: object, says: str) -> None:
    lines = export(4).decode().splitlines(keepends=True)
    changed = "".join(change(lines)).encode(errors="surrogateescape")  # type: ignore[operator]
    assert says in str(read_export(changed).broken)


def test_a_chain_written_anew_lacks_the_head_that_was_noted() -> None:
    noted = read_export(export(3)).head
    assert noted in read_export(export(5)).heads
    first = record(2)
    anew = Chain()
    anew.read(first.line)
    rewritten = f"{first.line}\n{anew.seal}\n".encode()
    assert read_export(rewritten).broken is None
    assert noted not in read_export(rewritten).heads
