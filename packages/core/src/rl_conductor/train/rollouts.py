"""TRL's hook for rollouts of one's own: plans are drawn and run, and some of them are judged in a second round.

In a second round the Conductor is told its plan and the answer, as in serving, and writes another plan or an empty one.
Every plan is run once: what came of it stands on its row, for the reward and for the round after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rl_conductor.sync import run_sync
from rl_conductor.train.drawing import Written, plans_for
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.held import Held
from rl_conductor.train.outcomes import Examiner, Outcome
from rl_conductor.train.tokens import Tokens

Prompt = tuple[int, ...]


class Asked(NamedTuple):
    """What a row of a batch asks for."""

    exercise: int
    """Its number."""
    round: int
    """1 or 2."""


@dataclass(frozen=True)
class Played:
    """A row of a batch: a plan that was drawn, and what came of it."""

    exercise: Exercise
    prompt: list[int]
    written: Written
    outcome: Outcome | None
    """`None` where there is no answer to judge: the tokens are then those of the first round, and count for nothing."""
    before: Outcome | None = None
    """In a second round, what came of the first."""


class Rollouts:
    """Plays the rows of a batch."""

    def __init__(
        self, exercises: Sequence[Exercise], examiner: Examiner, tokens: Tokens, *, held: Sequence[Held | None]
    ) -> None:
        """Take what is needed to play.

        Args:
            exercises: all of them, by number.
            examiner: who says what came of a plan.
            tokens: the model's.
            held: the grammar of each round, as far as there is one.
        """
        self._exercises = exercises
        self._examiner = examiner
        self._tokens = tokens
        self._held = held
        self._begun: dict[Prompt, Prompt] = {}
        """For each prompt of a second round, the one of the first, which it begins with."""

    def __call__(self, _prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """A plan for each row that the trainer was asked for, in this order."""
        asked: Sequence[Asked] = trainer.asked
        judged = {row.exercise for row in asked if row.round == 2}
        first = self._first([self._exercises[row.exercise] for row in asked if row.round == 1], trainer)
        second = self._second([one for one in first if one.exercise.number in judged], trainer) if judged else []
        rounds = {1: iter(first), 2: iter(second)}
        return _columns([next(rounds[row.round]) for row in asked])

    def held(self, prompt: Sequence[int]) -> Held | None:
        """The grammar of the plans that were drawn for a prompt of the newest batch."""
        later, _ = self.family(prompt)
        return self._held[later]

    def family(self, prompt: Sequence[int]) -> tuple[bool, Prompt]:
        """What a prompt of the newest batch shares with its group: the round, and the first round's prompt."""
        own = tuple(prompt)
        return own in self._begun, self._begun.get(own, own)

    def _first(self, asked: Sequence[Exercise], trainer: Any) -> list[Played]:
        prompts = [self._tokens.prompt(one.messages) for one in asked]
        written = plans_for(prompts, trainer, self._held[0], alike=trainer.num_generations)
        outcomes = run_sync(self._examiner.outcomes(asked, [self._tokens.text(one.plan) for one in written]))
        return list(map(Played, asked, prompts, written, outcomes))

    def _second(self, first: Sequence[Played], trainer: Any) -> list[Played]:
        again = {place: exercise for place, one in enumerate(first) if (exercise := _again(one))}
        prompts = [
            self._tokens.prompt(again[place].messages) if place in again else one.prompt
            for place, one in enumerate(first)
        ]
        # For all of them, answer or not: engines that draw together must be asked for equally many each.
        written = plans_for(prompts, trainer, self._held[1], alike=1)
        texts = [self._tokens.text(written[place].plan) for place in again]
        before = [first[place].outcome for place in again]
        outcomes = run_sync(self._examiner.outcomes(list(again.values()), texts, before))
        second = [replace(one, outcome=None, before=one.outcome) for one in first]
        for place, outcome in zip(again, outcomes, strict=True):
            second[place] = Played(again[place], prompts[place], written[place], outcome, before=first[place].outcome)
        self._begun = {tuple(prompts[place]): tuple(first[place].prompt) for place in again}
        return second


def _again(one: Played) -> Exercise | None:
    """The exercise of the second round; `None` where there is no answer to judge."""
    done = one.outcome.round if one.outcome else None
    return one.exercise.after(done) if done else None


def _columns(played: Sequence[Played]) -> dict[str, Any]:
    """What TRL wants to know of the rows; what is called otherwise it passes on to the reward."""
    log_probs = [one.written.log_probs for one in played]
    columns = {
        "prompt_ids": [one.prompt for one in played],
        "completion_ids": [one.written.plan for one in played],
        "logprobs": None if None in log_probs else log_probs,
        "played": list(played),
    }
    if any(one.before for one in played):
        columns["env_mask"] = [[int(one.outcome is not None)] * len(one.written.plan) for one in played]
    return columns
