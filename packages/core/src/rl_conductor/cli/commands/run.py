"""`run`: runs a workflow from a file, without planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from rl_conductor.cli import options, runner
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.input.files import read_workflow
from rl_conductor.cli.input.question import build_request


@options.with_run_options(without={"conductor_folder", "models", "profile", "rounds", "steps"})
def run(
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW.json", help="The workflow, as 'plan --json' prints it; '-' is stdin.")
    ],
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION", help="The overall task; the last step's subtask by default.", show_default=False
        ),
    ] = None,
    *,
    file: options.Files = None,
    show_trace: options.ShowTrace = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    save: options.Save = None,
    run_options: options.RunOptions,
) -> None:
    """Run a workflow from a file.

    \b
    Examples:
      rl-conductor run workflow.json "What is 12 * 12?"
      rl-conductor plan --json "..." | rl-conductor run - "..."
    """
    given_workflow = read_workflow(workflow)
    request = build_request(question or given_workflow.steps[-1].subtask, file)
    run_options = replace(run_options, rounds=1, steps=len(given_workflow.steps))
    conductor, discovered = run_options.conductor()
    prepare_models(conductor, discovered, quiet=quiet)
    output = runner.OutputOptions(as_json=as_json, quiet=quiet, show_trace=show_trace, save=save)
    runner.run_and_print(conductor, request, output, workflow=given_workflow)
