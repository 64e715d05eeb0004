"""`plan`: plans a request without running it."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from rl_conductor.cli import exit_codes, options, runner
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.input.question import build_request
from rl_conductor.cli.output import console, diagram
from rl_conductor.cli.output.report import deduplicate, plan_heading
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import PlanRecord

OutputFormat = Literal["text", "json", "mermaid"]


@options.with_run_options(without={"models", "rounds"})
def plan(
    question: options.Question = None,
    *,
    file: options.Files = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the workflow as JSON, as 'run' reads it.", rich_help_panel=options.OUTPUT),
    ] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid flow chart.", rich_help_panel=options.OUTPUT)
    ] = False,
    run_options: options.RunOptions,
) -> None:
    """Plan a workflow for a question without running it.

    \b
    Examples:
      rl-conductor plan "Write a limerick about DNS and check its rhymes."
      rl-conductor plan --json "..." > workflow.json
      rl-conductor run workflow.json
    """
    if as_json and mermaid:
        raise ConfigError("--json and --mermaid can't be combined; pass one of them")
    request = build_request(question, file)
    conductor, discovered = run_options.conductor()
    prepare_models(conductor, discovered, runs=False)
    show(runner.make_plan(conductor, request), "json" if as_json else "mermaid" if mermaid else "text")


def show(record: PlanRecord, form: OutputFormat) -> None:
    """Prints a plan to stdout, and its origin and cost to stderr.

    Raises:
        typer.Exit: the planner failed, so this is the fallback plan.
    """
    workflow = record.workflow
    assert workflow is not None, "only a later round can accept an answer"
    error = console.stderr()
    if form == "text":
        out = console.stdout()
        out.print(diagram.outline(workflow, out.width))
    elif form == "json":
        console.write_json(workflow.model_dump_json(indent=2))
    else:
        sys.stdout.write(f"{console.clean(workflow.mermaid())}\n")
    if record.reasoning.strip():
        console.note(error, console.one_line(record.reasoning))
    for repair in record.repairs:
        console.note(error, f"repaired: {console.one_line(repair)}", "yellow")
    error.print(plan_heading(None, "the planner", record))
    if record.source == "fallback":
        console.fail(
            "the planner wrote no valid plan, so this is the fallback: " + "; ".join(deduplicate(record.errors))
        )
        raise typer.Exit(exit_codes.FAILURE)
