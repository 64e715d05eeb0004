"""`ask`: the answer to a question."""

from __future__ import annotations

from rl_conductor.cli import options, runner
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.input.question import build_request


@options.with_run_options()
def ask(
    question: options.Question = None,
    *,
    file: options.Files = None,
    system: options.System = None,
    schema: options.Schema = None,
    show_trace: options.ShowTrace = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    save: options.Save = None,
    run_options: options.RunOptions,
) -> None:
    """Answer a question: plan a workflow, run it, print the answer.

    The answer goes to stdout; progress and the summary go to stderr.

    \b
    Examples:
      rl-conductor ask "A shop sells pens at 3 dollars each. How much do 17 pens cost?"
      git diff | rl-conductor ask "Review this change." --file -
      rl-conductor ask --usd 0.05 --json --schema city.json "What is the capital of France?" | jq -r .text
    """
    request = build_request(question, file, system=system, schema=schema)
    built, discovered = run_options.conductor()
    prepare_models(built, discovered, quiet=quiet)
    output = runner.OutputOptions(as_json=as_json, quiet=quiet, show_trace=show_trace, save=save)
    runner.run_and_print(built, request, output)
