"""Simple requests through the server: one call, and everybody who looks is told why."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.capitals import capital_router
from core.runs import pool_of
from rl_conductor import ConfigError, ScriptedModel
from rl_conductor.cli.main import app
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.planning.planner import Planner
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.settings import ServedModelEntry, read_settings
from server.conftest import TWO_STEPS, At, Serve

SIMPLE = "What is the capital of France?"


@pytest.fixture
async def at(serve: Serve, tmp_path: Path) -> At:
    """A server one of whose models has a router."""
    capital_router().write(tmp_path / "router.json")
    house = {"released": "2026-11-01", "router": str(tmp_path / "router.json")}
    pool = pool_of(a="from a", b="from b")
    return await serve(pool, ScriptedModel([TWO_STEPS] * 9), models={"house": house})


async def ask(at: At, text: str, model: str = "house") -> tuple[str, dict[str, Any]]:
    """The answer, and the plan as the reply tells of it."""
    reply = await at.openai().chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    told = (reply.model_extra or {})["conductor"]["rounds"][0]["plan"]
    return reply.choices[0].message.content or "", told


async def test_a_simple_request_is_one_call_and_the_reply_says_why(at: At) -> None:
    answer, told = await ask(at, SIMPLE)

    assert answer == "from a"
    assert told["source"] == "router"
    assert told["usage"]["calls"] == 0
    decision = told["routing"]
    assert decision["route"] == "single"
    assert decision["probability"] >= decision["threshold"]
    assert decision["classifier"] == capital_router().sha256


async def test_other_requests_and_models_are_planned(at: At) -> None:
    answer, told = await ask(at, "Write a parser.")
    assert (answer, told["source"]) == ("from b", "planner")
    assert told["routing"]["route"] == "conductor"

    answer, told = await ask(at, SIMPLE, model="conductor-ultra")
    assert (answer, told["source"], told["routing"]) == ("from b", "planner", None)


async def test_a_stream_is_one_call_too(at: At) -> None:
    stream = await at.openai().chat.completions.create(
        model="house", messages=[{"role": "user", "content": SIMPLE}], stream=True
    )
    said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    assert said == "from a"


async def test_the_page_and_the_command_line_show_the_decision(at: At, tmp_path: Path) -> None:
    await ask(at, SIMPLE)
    await at.service.store.write_queue.flush()
    (row,) = await at.service.store.list_runs()

    page = (await at.http.get(f"/runs/{row.id}")).text
    assert "Not planned: the router sent the request to a single worker" in page
    assert f"one call of a: right with probability 0.998, from 0.900 (router {capital_router().sha256[:12]})" in page

    trace = await at.service.store.get_trace(row.id)
    assert trace is not None
    (tmp_path / "run.json").write_text(trace.model_dump_json())
    said = CliRunner().invoke(app, ["trace", "show", str(tmp_path / "run.json")], env={"COLUMNS": "200"})
    assert "simple request, no planning" in said.stdout
    assert "router: one call of a: right with probability 0.998, from 0.900" in said.stdout


def test_a_models_router_lies_beside_its_settings_and_is_part_of_what_it_is(tmp_path: Path) -> None:
    capital_router().write(tmp_path / "router.json")
    config = tmp_path / "server.toml"
    config.write_text('[models.house]\nreleased = 2026-11-01\nrouter = "router.json"\n')
    found = DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=pool_of(a="from a"))

    house = build_catalog(found, read_settings(config).models).find("house")
    plain = build_catalog(found, {"house": ServedModelEntry(released=date(2026, 11, 1))}).find("house")

    assert house.conductor.config.router == capital_router()
    assert house.fingerprint != plain.fingerprint
    (tmp_path / "router.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"router\.json"):
        build_catalog(found, read_settings(config).models)
