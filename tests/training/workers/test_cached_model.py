from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from core.runs import plan
from rl_conductor import Completion, Conductor, ConfigError, Price, Request, Sampling, ScriptedModel, Worker, WorkerPool
from rl_conductor.errors import ModelError
from rl_conductor.models.base import Capabilities, Model, collect
from rl_conductor.prompting.worker_prompt import Evidence, worker_prompt
from rl_conductor.types import Message, Usage
from rl_conductor_training.workers.cached_model import CachedModel, stored_usage
from rl_conductor_training.workers.compact import CompactModel


def asking(text: str = "hello", **sampling: object) -> Request:
    return Request.user(text, sampling=Sampling.model_validate(sampling))


@pytest.fixture
def model() -> ScriptedModel:
    made: ScriptedModel = ScriptedModel(lambda _: f"reply {len(made.requests)}")
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "replies.sqlite"


async def test_the_same_request_is_made_once_and_known_to_another_process(model: ScriptedModel, file: Path) -> None:
    first = await CachedModel(model, file).complete(asking())
    again = await CachedModel(model, file).complete(asking())
    assert (first.text, again.text, len(model.requests)) == ("reply 1", "reply 1", 1)
    assert again.message == first.message


async def test_the_usage_of_stored_replies_is_what_they_cost_once(model: ScriptedModel, file: Path) -> None:
    assert stored_usage(file).calls == 0
    cached = CachedModel(model, file)
    replies = [await cached.complete(asking(text)) for text in ("one", "two", "two")]
    assert stored_usage(file).total_tokens == sum(reply.usage.total_tokens for reply in replies[:2])
    assert stored_usage(file).calls == 2


async def test_cached_usage_counts_as_when_it_was_made_and_is_marked(model: ScriptedModel, file: Path) -> None:
    cached = CachedModel(model, file)
    first, again = await cached.complete(asking()), await cached.complete(asking())
    assert (first.usage.cached_calls, first.usage.cached_seconds) == (0, 0.0)
    assert again.usage == first.usage.model_copy(
        update={"cached_calls": 1, "cached_seconds": again.usage.cached_seconds}
    )
    assert (first.usage + again.usage).cached_calls == 1


@pytest.mark.parametrize("other", [asking("bye"), asking(seed=2), asking(temperature=1.0)])
async def test_another_request_is_another_reply(model: ScriptedModel, file: Path, other: Request) -> None:
    cached = CachedModel(model, file)
    assert (await cached.complete(asking())).text != (await cached.complete(other)).text


async def test_a_reply_that_another_release_kept_is_asked_for_anew(model: ScriptedModel, file: Path) -> None:
    cached = CachedModel(model, file)
    pool = WorkerPool([Worker.of("a", cached), Worker.of("b", ScriptedModel("from b"))])
    asked = [Conductor(ScriptedModel(plan((0, "Say it.", []))), pool, retries=0) for _ in range(3)]
    assert (await asked[0].run("hello")).text == "reply 1"
    with closing(sqlite3.connect(file)) as table, table:
        table.execute("UPDATE replies SET completion = replace(completion, 'cached_calls', 'older_calls')")

    anew, again = await asked[1].run("hello"), await asked[2].run("hello")

    assert (anew.text, again.text, len(model.requests)) == ("reply 2", "reply 2", 2)
    (calls,) = (step.calls for step in anew.rounds[0].results)
    assert [(call.worker, call.outcome) for call in calls] == [("a", "ok")]
    assert (anew.usage.cached_calls, again.usage.cached_calls) == (0, 1)


async def test_a_cached_reply_costs_what_the_call_would_cost_now(file: Path) -> None:
    for price, dollars in (
        (Price(input=0, output=0, per_call=1), 1),
        (Price(input=0, output=0, per_call=5), 5),
        (None, 0),
    ):
        model = ScriptedModel("reply", price=price)
        usage = (await CachedModel(model, file).complete(asking())).usage
        assert (usage.cost, usage.unpriced_calls) == (Decimal(dollars or 0), 0 if price else 1)
    assert stored_usage(file).cost == 1


async def test_another_model_or_version_is_another_reply(file: Path) -> None:
    one, other = ScriptedModel("one", name="one"), ScriptedModel("other", name="other")
    assert (await CachedModel(one, file).complete(asking())).text == "one"
    assert (await CachedModel(other, file).complete(asking())).text == "other"
    newer = ScriptedModel("newer", name="one")
    assert (await CachedModel(newer, file, version="2").complete(asking())).text == "newer"


async def test_neither_the_timeout_nor_the_marks_of_a_run_make_a_difference(model: ScriptedModel, file: Path) -> None:
    cached = CachedModel(model, file)
    seen = [Evidence(label="1", subtask="look", reply="found")]
    runs = [worker_prompt("q", seen, "answer", key=key) for key in ("run one", "run two")]
    assert runs[0] != runs[1]
    replies = [await cached.complete(asking(run).model_copy(update={"timeout": i + 1.0})) for i, run in enumerate(runs)]
    assert replies[0].text == replies[1].text


async def test_who_asks_the_same_meanwhile_waits_for_the_one_reply(file: Path) -> None:
    slow = ScriptedModel("slow", delay=0.1)
    cached = CachedModel(slow, file)
    replies = await asyncio.gather(*(cached.complete(asking()) for _ in range(5)))
    assert len(slow.requests) == 1
    assert sorted(reply.usage.cached_calls for reply in replies) == [0, 1, 1, 1, 1]


async def test_what_was_waited_for_is_not_told_as_cached_time_too(file: Path) -> None:
    cached = CachedModel(ScriptedModel("slow", delay=0.5), file)
    replies = await asyncio.gather(*(cached.complete(asking()) for _ in range(3)))
    streamed = await asyncio.gather(*(collect(cached.stream(asking("bye"))) for _ in range(3)))
    assert all(reply.usage.cached_seconds < 0.25 for reply in (*replies, *streamed))
    assert (await cached.complete(asking())).usage.cached_seconds >= 0.5


async def test_when_the_one_who_asks_gives_up_the_next_asks(file: Path) -> None:
    slow = ScriptedModel("slow", delay=0.1)
    cached = CachedModel(slow, file)
    first, second = (asyncio.create_task(cached.complete(asking())) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await second).text == "slow"
    assert len(slow.requests) == 2


async def test_a_cached_reply_tells_how_long_the_call_took(file: Path) -> None:
    cached = CachedModel(ScriptedModel("slow", delay=0.05), file)
    await cached.complete(asking())
    assert 0.05 <= (await cached.complete(asking())).usage.cached_seconds < 5
    await collect(cached.stream(asking("bye")))
    assert 0.05 <= (await collect(cached.stream(asking("bye")))).usage.cached_seconds < 5


async def test_a_failure_is_not_remembered(file: Path) -> None:
    flaky = ScriptedModel([ModelError("down", model="m"), "up"])
    cached = CachedModel(flaky, file)
    with pytest.raises(ModelError, match="down"):
        await cached.complete(asking())
    assert (await cached.complete(asking())).text == "up"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_reply_that_ends_after_its_reasoning_is_asked_for_again(file: Path, is_streamed: bool) -> None:
    model = ScriptedModel(["<think>47 times", "<think>47 times 12</think>564"])

    async def ask() -> Completion:
        cached = CachedModel(model, file)
        return await (collect(cached.stream(asking())) if is_streamed else cached.complete(asking()))

    assert [(await ask()).text for _ in range(3)] == ["<think>47 times", *["<think>47 times 12</think>564"] * 2]


async def test_a_step_succeeds_when_a_retry_answers_after_the_reasoning(file: Path) -> None:
    model = ScriptedModel(["<think>47 times", "<think>47 times 12</think>564"])
    planner = ScriptedModel([plan((0, "Calculate.", []))])
    trace = await Conductor(planner, {"coder": CachedModel(model, file)}).run("What is 47 * 12?")
    assert trace.text == "564"


async def test_reasoning_that_was_cut_off_is_cached(file: Path) -> None:
    message = Message.assistant("<think>47 times")
    model = ScriptedModel([Completion(message=message, finish_reason="length", model="m", usage=Usage(calls=1))])
    texts = [(await CachedModel(model, file).complete(asking())).text for _ in range(2)]
    assert texts == ["<think>47 times"] * 2


async def test_a_stream_is_remembered_once_it_is_whole(model: ScriptedModel, file: Path) -> None:
    cached = CachedModel(model, file)
    broken = cached.stream(asking())
    assert (await anext(broken)).text == "reply "
    await broken.aclose()
    assert [delta.text async for delta in cached.stream(asking())] == ["reply ", "2", ""]
    assert [delta.text async for delta in cached.stream(asking())] == ["reply 2", ""]
    known = await collect(cached.stream(asking()))
    assert (known.text, known.usage.cached_calls) == ("reply 2", 1)
    assert len(model.requests) == 2


async def test_two_threads_loops_share_a_cache(model: ScriptedModel, file: Path) -> None:
    cached = CachedModel(model, file)

    def elsewhere() -> Completion:
        return asyncio.run(cached.complete(asking()))

    assert (await asyncio.to_thread(elsewhere)).text == (await cached.complete(asking())).text


@pytest.mark.parametrize("wrapped", [CachedModel, lambda model, _: CompactModel(model)])
def test_a_model_around_another_passes_for_it_also_once_that_knows_what_it_can_do(
    wrapped: Callable[[Model, Path], Model], model: ScriptedModel, file: Path
) -> None:
    outer = wrapped(model, file)
    assert (outer.price, outer.capabilities) == (model.price, model.capabilities)
    model.capabilities = Capabilities(tools=True, context=7)  # as models in process do when they are loaded
    assert outer.capabilities == model.capabilities


async def test_replies_to_shortened_prompts_are_not_those_of_the_model_itself(model: ScriptedModel, file: Path) -> None:
    compact = CachedModel(CompactModel(model), file)
    await compact.complete(asking())
    assert (await CachedModel(model, file).complete(asking())).text == "reply 2"


def test_a_file_that_is_no_cache_is_a_mistake_of_the_user(model: ScriptedModel, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    with pytest.raises(ConfigError, match="notes"):
        CachedModel(model, tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="choose another file"):
        CachedModel(model, tmp_path / "notes.txt" / "below.sqlite")


async def test_a_reply_is_returned_although_the_cache_is_locked(
    model: ScriptedModel, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rl_conductor_training.workers.cached_model.BUSY_SECONDS", 0.01)
    cached = CachedModel(model, file)
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert (await cached.complete(asking())).text == "reply 1"
        assert [delta.completion.text async for delta in cached.stream(asking()) if delta.completion] == ["reply 2"]
    assert "was not stored in the cache" in caplog.text
    assert (await cached.complete(asking())).usage.cached_calls == 0


async def test_what_is_kept_is_readable_by_sqlite(model: ScriptedModel, file: Path) -> None:
    await CachedModel(model, file).complete(asking())
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM replies").fetchone() == (1,)
    connection.close()
