"""Questions with several accepted answers: a reply is right if a scorer finds it right for any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rl_conductor.scoring import Sample, Score, Scorer

ACCEPTED = "accepted"
"""The name of all accepted answers in the details of a sample, of which the first is its `answer`."""


def accepted_answers(sample: Sample) -> list[str]:
    """Returns all accepted answers of a sample."""
    return [*sample.details.get(ACCEPTED, [sample.answer])]


def accept_any(scorer: Callable[[Sample, str], Awaitable[Score]]) -> Scorer:
    """Returns a scorer that compares a reply with one accepted answer after the other, until it is right."""

    async def score(sample: Sample, text: str) -> Score:
        *others, last = accepted_answers(sample)
        for answer in others:
            result = await scorer(sample.model_copy(update={"answer": answer}), text)
            if result.right:
                return result
        result = await scorer(sample.model_copy(update={"answer": last}), text)
        if result.right or not others:
            return result
        accepted = " and ".join(map(repr, others))
        return result.model_copy(update={"explanation": f"{result.explanation}; so would be {accepted}"})

    return score
