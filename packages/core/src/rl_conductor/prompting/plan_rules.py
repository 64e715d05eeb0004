"""The rules of a plan, as the planner's prompt states them.

There are two wordings. The one of the paper, with `rules`, stays as it is word by word, because conductors were trained
with it (rosters `anonymous` and `ordinals`). The brief one, with `brief_rules` and `request_rules`, takes half of the
tokens. It keeps what is the same for every question apart from what depends on the question, so that vendors can cache
the former.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from rl_conductor.plan_text.forms import Form
from rl_conductor.workflow.plan_space import PlanSpace

SYSTEM = (
    "You are a conductor. You never answer a question yourself: you write the plan by which other models answer it."
)

RULES = """\
You are given a question. Write a plan that gets the best answer to it from a team of models with different skills.
A plan has {steps}. Each step has:
- a subtask: an instruction in plain words for one model. It may be the whole question, a part of it, or checking, \
correcting or combining what earlier steps gave;
- a model, by its number;
- an access list: {access}
Every model sees the question. The reply of the last step's model is given to the user as the answer, so the last \
subtask must ask for the complete answer. Use one step when one model can do it alone; use more when parts need \
different skills, or when a check by a second model is worth it. Steps that do not read each other run at the same \
time."""

ACCESS = {
    "binary": '[] if it sees no earlier step, ["all"] if it sees every earlier step\'s subtask and reply.',
    "positional": "the positions (from 0) of the earlier steps whose subtask and reply it sees; [] for none.",
}

FORMS = {
    "lists": "First think in one short line. Then write exactly three lines, with lists of the same length:\n"
    "model_id = [...]\nsubtasks = [...]\naccess_list = [...]",
    "rows": "First think in one short line. Then write one line for each step, as a JSON array of the model's number, "
    'the subtask and the access list:\n[0, "...", []]',
    "object": "Write one JSON object: reasoning (one short sentence) and steps, each with subtask, worker (the model's "
    "number) and access.",
}

FORMS_WITH_INPUTS = FORMS | {
    "rows": "First think in one short line. Then write one line for each step, as a JSON array of the model's number, "
    'the subtask, the access list and the inputs:\n[0, "...", [], ["all"]]',
    "object": "Write one JSON object: reasoning (one short sentence) and steps, each with subtask, worker (the model's "
    "number), access and inputs.",
}

RULE_LAST = "The last step must be done by model {numbers}."
RULE_VERIFIER = "The last step must be done by model {numbers} and see every earlier step: it checks them and answers."
RULE_ATTACHMENTS = """\
The question has {kind} that only model {numbers} can read; other models see its text and a note. One of these must do \
a step that the answer depends on, at best the first one: its subtask must ask for all that other steps need to know \
of the {kind}."""
RULE_INPUTS = """\
The question has several parts: {names}. Each step also has a list of inputs: the parts that its model sees. Write \
["all"], [] for none, or some of these names in this order, as in ["{example}"]. Give each step the parts that it \
needs."""
RULE_TOOLS = """\
The last step can call these tools: {names}. No other step can, so give no earlier step a subtask that needs them."""
MAX_TOOL_NAMES = 30
"""Names of tools that the planner reads."""
TOOL_NAME = re.compile(r"[\w.-]{1,64}")
"""A name that vendors accept. Others are left out, since names from a server of tools could instruct the planner."""
RULE_SUBTASK = "A subtask has at most {chars} characters."

# ---------------------------------------------------------------------------------- the brief wording

BRIEF_RULES = """\
You are a conductor. You never answer a question: you plan how a team of models answers it.
A plan has {steps}. A step has a model (its number), a subtask (plain instructions, at most {chars} characters: the \
question, a part of it, or to check, correct or combine replies) and an access list: {access}
Every model sees the question. The last step's reply goes to the user, so its subtask asks for the complete answer. \
Use one step if one model can do it alone; more if parts need different skills or a check is worth it. Steps that \
don't read each other run at once."""

BRIEF_ACCESS = {
    "binary": '[] sees no earlier step, ["all"] sees the subtask and reply of each.',
    "positional": "the positions (from 0) of the earlier steps whose subtask and reply it sees.",
}

BRIEF_FORMS = FORMS | {
    "rows": 'First think in one short line. Then write one line of JSON per step: [model, "subtask", access]',
    "object": "Write JSON: reasoning (one short line) and steps, each with subtask, worker (the model) and access.",
}
BRIEF_FORMS_WITH_INPUTS = FORMS_WITH_INPUTS | {
    "rows": 'First think in one short line. Then write one line of JSON per step: [model, "subtask", access, inputs]',
    "object": "Write JSON: reasoning (one short line) and steps, each with subtask, worker (the model), access and "
    "inputs.",
}


def brief_rules(space: PlanSpace, form: Form) -> str:
    """Describes to the planner, in few tokens, the rules and the output format of a plan, for any question."""
    access = BRIEF_ACCESS[space.access]
    forms = BRIEF_FORMS_WITH_INPUTS if space.inputs else BRIEF_FORMS
    return "\n".join(
        (
            BRIEF_RULES.format(steps=_steps(space), chars=space.subtask_chars, access=access),
            *_last_rule(space),
            forms[form],
        )
    )


def request_rules(space: PlanSpace, form: Form) -> Iterator[str]:
    """Yields the rules that depend on the question: its tools, readers of attachments, and inputs of steps."""
    names = [name for name in space.tools if TOOL_NAME.fullmatch(name)]
    if len(names) > MAX_TOOL_NAMES:
        names[MAX_TOOL_NAMES:] = [f"and {len(names) - MAX_TOOL_NAMES} more"]
    if names:
        yield RULE_TOOLS.format(names=", ".join(names))
    for rule in space.attachments:
        yield RULE_ATTACHMENTS.format(kind=rule.kind, numbers=_numbers(space, rule.readers))
    if space.inputs and form != "lists":
        yield RULE_INPUTS.format(names=", ".join(space.inputs), example=space.inputs[0])


def rules(space: PlanSpace, form: Form) -> str:
    """Describes to the planner the rules and the output format of a plan."""
    forms = FORMS_WITH_INPUTS if space.inputs else FORMS
    lines = [
        RULES.format(steps=_steps(space), access=ACCESS[space.access]),
        *_last_rule(space),
        *request_rules(space, form),
        RULE_SUBTASK.format(chars=space.subtask_chars),
        forms[form],
    ]
    return "\n".join(lines)


def _steps(space: PlanSpace) -> str:
    return "one step" if space.max_steps == 1 else f"{space.min_steps} to {space.max_steps} steps"


def _last_rule(space: PlanSpace) -> Iterator[str]:
    if space.last is not None:
        rule = RULE_VERIFIER if space.last_reads_all else RULE_LAST
        yield rule.format(numbers=_numbers(space, space.final_workers))


def _numbers(space: PlanSpace, names: Collection[str]) -> str:
    return " or ".join(str(number) for number, name in enumerate(space.roster) if name in names)
