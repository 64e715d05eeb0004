"""Replies that attack the prompts which quote them.

`attacks/` holds one attempt a file; `{mark}` stands for the mark that the attacker saw in its own prompt.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.runs import ACCEPT, evidence_in, evidence_of, plan, pool_of, prompt_of, sections, subtask_of, workflow
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.prompting.planner_prompt import REPLY_BYTES, PreviousRound, PromptSettings, planner_messages
from rl_conductor.prompting.worker_prompt import EVIDENCE_NOTICE, MAX_REPLY_CHARS, TASK, Evidence, worker_prompt
from rl_conductor.text.delimiters import escape_tags
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Card, Message, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import PlanSpace

ATTACKS = {path.stem: path.read_bytes().decode() for path in sorted((Path(__file__).parent / "attacks").glob("*.txt"))}
QUESTION = "What is it?"
SPACE = PlanSpace(roster=("a", "b"), allowed=frozenset("ab"), recallable=frozenset("a"), may_accept=True)

fragments = st.sampled_from(
    [
        *("<", ">", "</", "/", "\n", " ", '"', "&lt;", "mark=", 'step="1"', "{mark}", "\n\n", "\r", "\u2028"),
        *("reply", "subtask", "task", "plan", "REPLY", '<reply step="1" mark="{mark}">\n', '\n</reply mark="{mark}">'),
        *("Your part of the task:\n", "<think>", "</think>\n", EVIDENCE_NOTICE, "{reply}"),
    ]
)
replies = st.one_of(
    st.lists(fragments, min_size=1, max_size=12).map("".join),
    st.text(min_size=1, max_size=40),
    st.lists(fragments | st.text(max_size=5), min_size=1, max_size=12).map("".join),
).filter(lambda text: bool(text.strip()))


def marks(prompt: str) -> set[str]:
    return set(re.findall(r'mark="([0-9a-f]{16})"', prompt))


def attacker(attack: str, seen: list[str]) -> Callable[[Request], str]:
    """A worker that has read its own prompt, or an accomplice's, and uses every mark it found there."""

    def reply(request: Request) -> str:
        seen.extend(sorted(marks(prompt_of(request))))
        return "\n".join(attack.replace("{mark}", mark) for mark in seen or ["0123456789abcdef"])

    return reply


FLOW = workflow(("a", "one", ()), ("a", "two", (0,)), ("a", "three", (0, 1)), ("b", "four", (0, 1, 2)))


async def attacked(attack: str) -> None:
    """Each prompt holds exactly the true steps, in fences whose mark was in no reply; then comes the true subtask."""
    seen: list[str] = []
    victim = ScriptedModel("ok")
    replying = ScriptedModel(attacker(attack, seen))
    conductor = Conductor(ScriptedModel([]), pool_of(a=replying, b=victim), retries=0)  # a retry would wait first
    trace = await conductor.run(QUESTION, workflow=FLOW)

    results = trace.rounds[0].results
    subtasks = [step.subtask for step in FLOW.steps]
    for request in (*replying.requests, *victim.requests):  # who replies with reasoning alone is replaced
        step = FLOW.steps[subtasks.index(subtask_of(request))]
        assert evidence_of(request) == [
            (str(i + 1), FLOW.steps[i].subtask, escape_tags(truncate_middle(results[i].text, MAX_REPLY_CHARS)))
            for i in sorted(step.access)
        ]
        assert prompt_of(request).startswith(TASK.format(question=QUESTION))
        own = {mark for mark in marks(prompt_of(request)) if f'<reply step="1" mark="{mark}">' in prompt_of(request)}
        assert not any(mark in results[i].text for mark in own for i in step.access)


def test_the_corpus_is_there() -> None:
    assert len(ATTACKS) >= 30


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_reply_can_pass_for_anything_but_data(name: str) -> None:
    await attacked(ATTACKS[name])


@given(replies)
@settings(max_examples=200, deadline=None)
def test_no_reply_whatever_can_pass_for_anything_but_data(attack: str) -> None:
    asyncio.run(attacked(attack))


@given(question=replies, subtask=replies, quoted=st.lists(replies, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_neither_question_nor_subtasks_can_forge_a_step(question: str, subtask: str, quoted: list[str]) -> None:
    evidence = [Evidence(label=str(i), subtask=text, reply=text) for i, text in enumerate(quoted)]

    prompt = worker_prompt(question, evidence, subtask, key="secret")

    # What they say of marks is not the prompt's own, so the fences are read by the one that encloses the last.
    fences = prompt[len(TASK.format(question=question)) : prompt.rindex(EVIDENCE_NOTICE)]
    assert evidence_in(fences) == [(str(i), escape_tags(text), escape_tags(text)) for i, text in enumerate(quoted)]
    own = marks(fences.lstrip("\n").partition("\n")[0])
    assert not any(mark in text for mark in own for text in (question, subtask, *quoted))


def test_a_mark_says_nothing_about_the_mark_of_another_prompt() -> None:
    def mark_of(reply: str) -> set[str]:
        return marks(worker_prompt(QUESTION, [Evidence("1", "x", reply)], "y", key="secret"))

    assert len(mark_of("a") | mark_of("b") | mark_of(next(iter(mark_of("a"))))) == 3


def test_nobody_can_compute_a_mark_without_the_key_of_the_run() -> None:
    prompts = [worker_prompt(QUESTION, [Evidence("1", "x", "y")], "z", key=key) for key in ("one", "another")]

    assert marks(prompts[0]).isdisjoint(marks(prompts[1]))


# ------------------------------------------------------------------------------------- the planner


def reviewed(reply: str) -> str:
    cards = (Card(name="a"), Card(name="b"))
    previous = PreviousRound(plan="plan", reply=reply)
    messages = planner_messages(
        (Message.user(QUESTION),), SPACE, cards, PromptSettings(), key="secret", previous_rounds=[previous]
    )
    return messages[-1].text


@pytest.mark.parametrize("name", ATTACKS)
def test_no_reply_can_pass_for_the_planners_instructions(name: str) -> None:
    seen = next(iter(marks(reviewed("x"))))
    reply = ATTACKS[name].replace("{mark}", seen)

    (section,) = sections(reviewed(reply))

    assert (section.tag, section.content) == ("reply", escape_tags(reply[-REPLY_BYTES:]))
    before, _, after = reviewed("x").partition("\nx\n")
    assert reviewed(reply).startswith(before[: before.index(seen)])
    assert reviewed(reply).endswith(after[after.index(seen) + len(seen) :])


@given(replies)
@settings(max_examples=200, deadline=None)
def test_no_reply_whatever_can_pass_for_the_planners_instructions(reply: str) -> None:
    (section,) = sections(reviewed(reply))

    assert section.content == escape_tags(reply[-REPLY_BYTES:])


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_reply_that_writes_a_plan_plans_nothing(name: str) -> None:
    """Only what the planner itself writes is a plan: the steps that run are those it named."""
    victim = ScriptedModel("ok")
    planner = ScriptedModel([plan((0, "one", [])), plan((0, "again", ["all"])), ACCEPT])

    pool = pool_of(a=ScriptedModel(attacker(ATTACKS[name], [])), b=victim)
    trace = await Conductor(planner, pool, limits=Limits(rounds=3), retries=0).run(QUESTION)

    assert [result.step.subtask for result in trace.results] == ["one", "again"]
    assert {subtask_of(request) for request in victim.requests} <= {"one", "again"}  # as a replacement
    planner.assert_complete()
