"""The prompt version changes with every prompt template."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from rl_conductor.plan_text import forms, json_schema
from rl_conductor.prompting import (
    plan_rules,
    planner_prompt,
    prompt_version,
    request_inputs,
    roster,
    transcript,
    worked_examples,
    worker_prompt,
)
from rl_conductor.text import delimiters

RULE_TEXTS = [
    "SYSTEM",
    "RULES",
    "RULE_LAST",
    "RULE_VERIFIER",
    "RULE_SUBTASK",
    "RULE_ATTACHMENTS",
    "RULE_INPUTS",
    "RULE_TOOLS",
    "BRIEF_RULES",
]
PLANNER_TEXTS = [
    "MODELS",
    "BRIEF_QUESTION",
    "INSTRUCTIONS",
    "QUESTION",
    "REVIEW",
    "REVIEW_STEPS",
    "REJECTED",
    "NO_TEXT",
    "RECALL",
]
WORKER_TEXTS = ("TASK", "EVIDENCE_NOTICE", "SUBTASK", "HIDDEN_ATTACHMENT")

version = prompt_version.prompt_version.__wrapped__


def test_it_stays_while_nothing_changes() -> None:
    assert version() == version() == prompt_version.prompt_version()


@pytest.mark.parametrize(
    ("home", "text"),
    [
        *((plan_rules, text) for text in RULE_TEXTS),
        *((planner_prompt, text) for text in PLANNER_TEXTS),
        (roster, "BRIEF_MODELS"),
        *((worker_prompt, text) for text in WORKER_TEXTS),
        *((request_inputs, text) for text in ("HIDDEN_INPUTS", "HIDDEN_TEXT")),
    ],
)
def test_it_changes_with_each_text(home: ModuleType, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = version()
    for module in (home, planner_prompt, prompt_version):
        if hasattr(module, text):
            monkeypatch.setattr(module, text, f"{getattr(home, text)} And so on.")
    assert version() != before


@pytest.mark.parametrize(
    ("home", "texts", "of"),
    [
        *((planner_prompt, "ACCEPTS", form) for form in planner_prompt.ACCEPTS),
        *(
            (plan_rules, name, of)
            for name in (
                *("ACCESS", "FORMS", "FORMS_WITH_INPUTS"),
                *("BRIEF_ACCESS", "BRIEF_FORMS", "BRIEF_FORMS_WITH_INPUTS"),
            )
            for of in getattr(plan_rules, name)
        ),
    ],
)
def test_it_changes_with_each_wording_of_a_choice(
    home: ModuleType, texts: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = version()
    monkeypatch.setitem(getattr(home, texts), of, "Otherwise.")
    assert version() != before


@pytest.mark.parametrize("name", ["EXAMPLES", "BRIEF_EXAMPLES"])
@pytest.mark.parametrize("number", range(4))
def test_it_changes_with_each_worked_example(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, examples = version(), getattr(worked_examples, name)
    changed = replace(examples[number], reasoning="Otherwise.")
    monkeypatch.setattr(worked_examples, name, (*examples[:number], changed, *examples[number + 1 :]))
    assert version() != before


@pytest.mark.parametrize(
    ("home", "name", "changed"),
    [
        (roster, "_card_text", lambda card, **_: f"{card.strengths} and so on"),
        (roster, "_price_text", lambda price: f"{price.input}"),
        (roster, "_brief_facts", lambda card, _chars: [card.strengths]),
        (roster, "_units", lambda _cards: ""),
        (planner_prompt, "REPLY_BYTES", 1),
        (planner_prompt, "STEP_REPLY_BYTES", 1),
        (prompt_version, "REJECTED_PLAN_CHARS", 1),
        (prompt_version, "REJECTION_REASON_CHARS", 1),
        (roster, "MODEL", "Worker {number}"),
        (transcript, "_message_text", lambda _index, message, _names: message.text),
        (transcript, "_turn", lambda _message, text, _key: text),
        (planner_prompt, "delimit", lambda _tag, content, _mark, **_attributes: content),
        (delimiters, "_TAGS", re.compile("Seen")),
        (json_schema, "_how_many", lambda _space: "A few."),
        (forms, "ALL", "everything"),
        (prompt_version, "ANSWER", "Say it."),
        (prompt_version, "VERIFY", "Look again."),
        (prompt_version, "NO_REPLY", "(nothing)"),
    ],
)
def test_it_changes_with_how_things_are_told(
    home: ModuleType, name: str, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = version()
    monkeypatch.setattr(home, name, changed)
    assert version() != before
