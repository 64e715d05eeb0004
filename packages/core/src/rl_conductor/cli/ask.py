"""`ask`: the answer to a question."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_conductor.cli import conducting, options, plan
from rl_conductor.cli.embedded import get_ready
from rl_conductor.types import Request


def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="What to answer; without it, stdin.", show_default=False)
    ] = None,
    *,
    file: options.Files = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Draw the plan and do not run it.", rich_help_panel=options.OUTPUT)
    ] = False,
    show_trace: options.ShowTrace = False,
    as_json: options.AsJson = False,
    save: options.Save = None,
    pool: options.PoolOption = None,
    worker: options.Workers = None,
    deny: options.Denied = None,
    profile: options.ProfileOption = None,
    rounds: options.Rounds = None,
    steps: options.Steps = None,
    budget: options.Budget = None,
    deadline: options.Deadline = None,
    tokens: options.Tokens = None,
) -> None:
    """Answer a question: plan who does what, run it, print the answer.

    The answer goes to stdout; progress and the summary go to stderr.

    \b
    Examples:
      rl-conductor ask "A shop sells pens at 3 dollars each. How much do 17 pens cost?"
      rl-conductor ask "What does this chart say?" --file chart.png
      git diff | rl-conductor ask "Review this change." --file -
      rl-conductor ask --budget 0.05 --deadline 60 --save run.json "..."
    """
    asked = options.request_of(question, file)
    choice = options.Choice(
        pool=pool,
        workers=worker,
        denied=deny,
        profile=profile,
        rounds=rounds,
        steps=steps,
        budget=budget,
        deadline=deadline,
        tokens=tokens,
    )
    output = conducting.Output(as_json=as_json, show_trace=show_trace, save=save)
    _ask(asked, choice, output, plan_only=plan_only)


def _ask(asked: Request, choice: options.Choice, output: conducting.Output, *, plan_only: bool) -> None:
    conductor, found = choice.conductor()
    get_ready(conductor, found, runs=not plan_only)
    if plan_only:
        plan.show(conducting.plan(conductor, asked), "json" if output.as_json else "text")
    else:
        conducting.conduct(conductor, asked, output)
