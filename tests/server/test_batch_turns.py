"""The order in which the requests of several keys and batches are processed."""

from __future__ import annotations

from rl_conductor_server.store import ItemResult, Store, StoredBatch
from rl_conductor_server.store.batches.batches import BatchLimits
from rl_conductor_server.store.batches.models import NewItem

LIMITS = BatchLimits(unfinished=100, count=100, bytes=10**9)


async def add(store: Store, name: str, key: str, lines: int, *, created: float = 1.0) -> None:
    batch = StoredBatch(
        id=name, key=key, endpoint="/v1/responses", input_file="file-x", created=created, expires=1e12, total=lines
    )
    items = [NewItem(line=line, custom_id=f"{line}", body="{}") for line in range(1, lines + 1)]
    assert await store.batches.add(batch, items, LIMITS) is None


async def finish_in_turn(store: Store, count: int) -> list[str]:
    """Processes items one after another, as a server with a concurrency of 1, and returns their batches."""
    names = []
    for _ in range(count):
        (item,) = await store.items.claim(1)
        await store.items.finish(item, ItemResult(status="done", text="{}"), max_total_bytes=10**9)
        names.append(item.batch)
    return names


async def test_a_new_batch_of_another_key_gets_every_second_turn(store: Store) -> None:
    await add(store, "old", "red", 20)
    assert await finish_in_turn(store, 6) == ["old"] * 6
    await add(store, "new", "blue", 20, created=2.0)
    assert await finish_in_turn(store, 6) == ["new", "old"] * 3


async def test_many_batches_of_a_key_get_as_many_turns_as_one_of_another(store: Store) -> None:
    for number in range(4):
        await add(store, f"red-{number}", "red", 5, created=float(number))
    await add(store, "blue-0", "blue", 5, created=9.0)
    claimed = [item.batch for item in await store.items.claim(8)]
    assert claimed == ["red-0", "blue-0", "red-1", "blue-0", "red-2", "blue-0", "red-3", "blue-0"]


async def test_short_batches_one_after_another_do_not_keep_a_long_one_of_another_key_waiting(store: Store) -> None:
    await add(store, "long", "red", 20)
    await finish_in_turn(store, 1)
    names = []
    for number in range(3):
        await add(store, f"short-{number}", "blue", 1, created=2.0 + number)
        names += await finish_in_turn(store, 2)
    assert names.count("long") == 3


async def test_a_key_with_fewer_requests_in_progress_is_next(store: Store) -> None:
    await add(store, "old", "red", 20)
    assert len(await store.items.claim(4)) == 4
    await add(store, "new", "blue", 20, created=2.0)
    assert [item.batch for item in await store.items.claim(6)] == ["new"] * 4 + ["old", "new"]


async def test_the_lines_of_a_batch_are_processed_in_order_and_those_of_some_keys_are_left(store: Store) -> None:
    await add(store, "red-0", "red", 5)
    await add(store, "blue-0", "blue", 3, created=2.0)
    claimed = await store.items.claim(10, except_keys=["red"])
    assert [(item.batch, item.line) for item in claimed] == [("blue-0", 1), ("blue-0", 2), ("blue-0", 3)]
