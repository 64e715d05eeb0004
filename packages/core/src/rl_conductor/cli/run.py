"""`run`: a workflow that is given, not planned."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_conductor.cli import conducting, options
from rl_conductor.cli.embedded import get_ready
from rl_conductor.cli.files import read_workflow


def run(
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW.json", help="The workflow, as 'plan --json' prints it; '-' is stdin.")
    ],
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION", help="The overall task; without it, the last step's subtask.", show_default=False
        ),
    ] = None,
    *,
    file: options.Files = None,
    show_trace: options.ShowTrace = False,
    as_json: options.AsJson = False,
    save: options.Save = None,
    pool: options.PoolOption = None,
    worker: options.Workers = None,
    deny: options.Denied = None,
    budget: options.Budget = None,
    deadline: options.Deadline = None,
    tokens: options.Tokens = None,
) -> None:
    """Run a workflow that is written down already.

    \b
    Examples:
      rl-conductor run workflow.json "What is 12 * 12?"
      rl-conductor plan --json "..." | rl-conductor run - "..."
    """
    given = read_workflow(workflow)
    asked = options.request_of(question or given.steps[-1].subtask, file)
    choice = options.Choice(
        pool=pool,
        workers=worker,
        denied=deny,
        rounds=1,
        steps=len(given.steps),
        budget=budget,
        deadline=deadline,
        tokens=tokens,
    )
    conductor, found = choice.conductor()
    get_ready(conductor, found)
    output = conducting.Output(as_json=as_json, show_trace=show_trace, save=save)
    conducting.conduct(conductor, asked, output, workflow=given)
