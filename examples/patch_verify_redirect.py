"""Write a patch, test it, and let the test's result decide what happens next.

The tester is a Python function that really runs the tests, in a sandbox. After each round the planner reads the replies
of all its steps: when the tests fail it hands the program to another worker, and when they pass it accepts the answer.
With a vendor's key set, its models plan and write; without one, scripted models take their place.
"""

from rl_conductor import Conductor, Limits, Request, ScriptedModel, Worker, discover
from rl_conductor.pool import AnyWorker
from rl_conductor_training.sandbox.sandbox import ResourceLimits, extract_program, run_python

TASK = "Write a Python function `median(numbers)`. The answer is the whole program in a ```python block."
TESTS = "assert median([3, 1, 2]) == 2\nassert median([4, 1, 3, 2]) == 2.5, 'the mean of the two in the middle'"

WRONG = "```python\ndef median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n```"
RIGHT = "```python\nimport statistics\n\ndef median(numbers):\n    return statistics.median(numbers)\n```"
STEPS = 'subtasks = ["{first}", "Run the tests.", "Reply with the program."]\naccess_list = [[], ["all"], ["all"]]'
PATCH = "model_id = [0, 2, 0]\n" + STEPS.format(first="Write it.")
REDIRECT = "The junior's tests fail.\nmodel_id = [1, 2, 1]\n" + STEPS.format(first="Use the standard library.")
ACCEPT = "The tests pass.\nmodel_id = []\nsubtasks = []\naccess_list = []"


async def tester(subtask: str, replies: list[str]) -> str:
    """Runs the tests on the newest program among the replies that it is shown."""
    del subtask  # there is only one thing to do
    program = next((extract_program(reply) for reply in reversed(replies) if "```" in reply), "")
    result = await run_python(f"{program}\n{TESTS}", limits=ResourceLimits(seconds=5))
    return "PASS" if result.status == "ok" else f"FAIL: {result.error.strip().splitlines()[-1]}"


def rehearsal() -> Conductor:
    """A planner that reacts to the tests, a junior whose program is wrong, and a senior."""

    def plan(request: Request) -> str:
        prompt = request.messages[-1].text
        return ACCEPT if "PASS" in prompt else REDIRECT if "FAIL: " in prompt else PATCH

    workers: dict[str, AnyWorker] = {
        "junior": ScriptedModel(WRONG),
        "senior": ScriptedModel(RIGHT),
        "tester": tester,
    }
    return Conductor(ScriptedModel(plan), workers, limits=Limits(rounds=3))


def real() -> Conductor | None:
    """The models of this machine, and the tester beside them; the tiny embedded ones can't do this."""
    found = discover()
    if found.embedded:
        return None
    return Conductor(found.planner, {**found.pool, "tester": Worker.of("tester", tester)}, limits=Limits(rounds=3))


trace = (real() or rehearsal()).run_sync(TASK)
for number, round_ in enumerate(trace.rounds, 1):
    print(f"Round {number}: {'accepted' if not round_.results else ''}")
    for result in round_.results:
        print(f"  {result.step.worker}: {result.step.subtask}\n    {result.text.splitlines()[-1]}")
print(f"\n{trace.text}")
