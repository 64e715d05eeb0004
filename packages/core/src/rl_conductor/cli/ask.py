"""`ask`: the answer to a question."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_conductor.cli import options, plan, runner
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.types import Request


def ask(
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="The question; read from stdin if omitted.", show_default=False),
    ] = None,
    *,
    file: options.Files = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print the plan without running it.", rich_help_panel=options.OUTPUT)
    ] = False,
    show_trace: options.ShowTrace = False,
    as_json: options.AsJson = False,
    save: options.Save = None,
    pool: options.PoolOption = None,
    conductor: options.ConductorFolder = None,
    worker: options.Workers = None,
    deny: options.Denied = None,
    profile: options.ProfileOption = None,
    rounds: options.Rounds = None,
    steps: options.Steps = None,
    budget: options.Budget = None,
    deadline: options.Deadline = None,
    tokens: options.Tokens = None,
) -> None:
    """Answer a question: plan a workflow, run it, print the answer.

    The answer goes to stdout; progress and the summary go to stderr.

    \b
    Examples:
      rl-conductor ask "A shop sells pens at 3 dollars each. How much do 17 pens cost?"
      rl-conductor ask "What does this chart say?" --file chart.png
      git diff | rl-conductor ask "Review this change." --file -
      rl-conductor ask --budget 0.05 --deadline 60 --save run.json "..."
    """
    request = options.build_request(question, file)
    run_options = options.RunOptions(
        pool=pool,
        conductor_folder=conductor,
        workers=worker,
        denied=deny,
        profile=profile,
        rounds=rounds,
        steps=steps,
        budget=budget,
        deadline=deadline,
        tokens=tokens,
    )
    output = runner.OutputOptions(as_json=as_json, show_trace=show_trace, save=save)
    _ask(request, run_options, output, plan_only=plan_only)


def _ask(request: Request, run_options: options.RunOptions, output: runner.OutputOptions, *, plan_only: bool) -> None:
    conductor, discovered = run_options.conductor()
    prepare_models(conductor, discovered, runs=not plan_only)
    if plan_only:
        plan.show(runner.make_plan(conductor, request), "json" if output.as_json else "text")
    else:
        runner.run_and_print(conductor, request, output)
