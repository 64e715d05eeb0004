from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList

import random_model
from rl_conductor.train.drawing import draw
from rl_conductor.train.held import Drawing, Held
from rl_conductor.train.loading import Loaded, load
from rl_conductor.train.scoring import score

GBNF = 'root ::= "model_id = [" ("0" | "1" | "2") "]" (" yes" | " no")?'
TEMPERATURE = 0.7
PROMPTS = ([5, 9, 200, 31], [7, 7, 8, 100, 101, 102, 50], [5, 9, 200, 31])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(random_model.make(tmp_path_factory.mktemp("tiny"))), dtype="float32")


@pytest.fixture(scope="module")
def model(loaded: Loaded) -> Any:
    return loaded.model.eval()


@pytest.fixture(scope="module")
def held(loaded: Loaded) -> Held:
    return Held(loaded.tokenizer, vocab_size=loaded.model.config.vocab_size, ends=loaded.ends, gbnf=GBNF)


def how(model: Any, **options: Any) -> GenerationConfig:
    ends = model.generation_config.eos_token_id
    given = {"do_sample": True, "top_k": 0, "temperature": TEMPERATURE, "max_new_tokens": 40}
    return GenerationConfig(**(given | options), eos_token_id=ends, pad_token_id=0)


def drawn(model: Any, held: Held | None, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    torch.manual_seed(3)
    return draw(model, prompts, how(model, **options), held)


def by_hand(model: Any, prompt: list[int], plan: list[int], allowed: torch.Tensor) -> torch.Tensor:
    """Log p(t) - log Z for each token, with Z the probability of all that is allowed."""
    logits = model(input_ids=torch.tensor([prompt + plan])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    probabilities = logits.double().softmax(-1)
    picked = probabilities[torch.arange(len(plan)), torch.tensor(plan)]
    return picked.log() - (probabilities * allowed).sum(-1).log()


def test_what_is_drawn_under_a_grammar_is_in_it(model: Any, held: Held, loaded: Loaded) -> None:
    texts = [loaded.tokenizer.decode(plan, skip_special_tokens=True) for plan in drawn(model, held, PROMPTS * 5)]
    assert all(text.startswith("model_id = [") for text in texts)
    assert len(set(texts)) > 3
    assert {text.partition("]")[2] for text in texts} <= {"", " yes", " no"}


def test_masked_log_probabilities_are_those_worked_by_hand(model: Any, held: Held) -> None:
    for prompt, plan in zip(PROMPTS, drawn(model, held), strict=True):
        found = score(model, [prompt], [plan], temperature=TEMPERATURE, held=held)[0]
        expected = by_hand(model, prompt, plan, held.allowed(plan))
        torch.testing.assert_close(found.log_probs.double(), expected, atol=1e-5, rtol=1e-4)
        assert (expected < -0.1).any()


def test_without_a_grammar_they_are_the_models_own(model: Any) -> None:
    plan = drawn(model, None, max_new_tokens=9)[0]
    found = score(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, held=None)[0]
    expected = by_hand(model, PROMPTS[0], plan, torch.ones(len(plan), model.config.vocab_size))
    torch.testing.assert_close(found.log_probs.double(), expected, atol=1e-5, rtol=1e-4)


def test_a_token_is_trained_with_the_probability_that_it_was_drawn_with(model: Any, held: Held) -> None:
    torch.manual_seed(5)
    out = model.generate(
        input_ids=torch.tensor([PROMPTS[1]]),
        generation_config=how(model, return_dict_in_generate=True, output_scores=True),
        logits_processor=LogitsProcessorList([Drawing(held, 1)]),
    )
    plan = out.sequences[0, len(PROMPTS[1]) :].tolist()
    drawn_with = torch.stack(out.scores, 1)[0].log_softmax(-1)[torch.arange(len(plan)), torch.tensor(plan)]
    found = score(model, [PROMPTS[1]], [plan], temperature=TEMPERATURE, held=held)[0]
    torch.testing.assert_close(found.log_probs, drawn_with, atol=1e-5, rtol=1e-4)


def gradient(model: Any, log_prob: torch.Tensor) -> float:
    model.zero_grad()
    log_prob.backward(retain_graph=True)
    return sum(float(one.grad.abs().sum()) for one in model.parameters() if one.grad is not None)


def test_only_a_choice_has_a_gradient(model: Any, held: Held) -> None:
    plan = drawn(model, held)[0]
    found = score(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, held=held)[0]
    choices = held.allowed(plan).sum(-1)
    for place, count in enumerate(choices.tolist()):
        assert (gradient(model, found.log_probs[place]) > 0) == (count > 1), (place, count)
        assert (found.entropies[place] > 0) == (count > 1)
    assert 0 < (choices > 1).sum() < len(plan)


def test_the_gradient_is_that_of_log_p_minus_that_of_log_z(model: Any, held: Held) -> None:
    plan = drawn(model, held)[0]
    ours, by_parts = (
        torch.autograd.grad(log_probs.sum(), model.lm_head.weight)[0]
        for log_probs in (
            score(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, held=held)[0].log_probs,
            by_hand(model, PROMPTS[0], plan, held.allowed(plan)),
        )
    )
    torch.testing.assert_close(ours, by_parts, atol=1e-5, rtol=1e-3)


BEGUN_ALIKE = ([5, 9, 200, 31], [5, 9, 200, 31, 7, 80], [5, 9, 8], [5, 9, 200, 31])


@pytest.mark.parametrize("prompts", [[PROMPTS[0]] * 4, BEGUN_ALIKE, (*BEGUN_ALIKE[:3], [7, 7])])
@pytest.mark.parametrize("share", [True, False])
def test_plans_that_are_scored_together_score_as_they_do_alone(
    model: Any, held: Held, prompts: list[list[int]], share: bool
) -> None:
    plans = [drawn(model, held, PROMPTS * 2)[place] for place in (0, 2, 3, 5)]
    together = score(model, prompts, plans, temperature=TEMPERATURE, held=held, share=share)
    for prompt, plan, found in zip(prompts, plans, together, strict=True):
        alone = by_hand(model, prompt, plan, held.allowed(plan))
        torch.testing.assert_close(found.log_probs.double(), alone, atol=1e-5, rtol=1e-4)


def test_what_is_read_once_learns_from_every_plan(model: Any, held: Held) -> None:
    plans = drawn(model, held, PROMPTS * 2)[:4]
    once, anew = (
        torch.autograd.grad(torch.cat([one.log_probs for one in found]).sum(), model.model.embed_tokens.weight)[0]
        for found in (
            score(model, BEGUN_ALIKE, plans, temperature=TEMPERATURE, held=held, share=share) for share in (True, False)
        )
    )
    torch.testing.assert_close(once, anew, atol=1e-5, rtol=1e-3)
    assert once[BEGUN_ALIKE[0]].abs().sum() > 0


def test_prompts_read_once_give_what_they_give_alone(model: Any, held: Held) -> None:
    together = drawn(model, held, do_sample=False)
    for prompt, plan in zip(PROMPTS, together, strict=True):
        alone = model.generate(
            input_ids=torch.tensor([prompt]),
            generation_config=how(model, do_sample=False),
            logits_processor=LogitsProcessorList([Drawing(held, 1)]),
        )
        assert plan == alone[0, len(prompt) :].tolist()


def test_a_plan_outside_of_the_grammar_is_never_scored(model: Any, held: Held) -> None:
    with pytest.raises(RuntimeError, match="outside"):
        score(model, [PROMPTS[0]], [[5, 6, 7]], temperature=TEMPERATURE, held=held)


def test_vllm_is_told_to_draw_no_special_token_but_those_that_end_a_plan(loaded: Loaded, held: Held) -> None:
    told = held.for_vllm
    assert told["structured_outputs"] == {"grammar": GBNF}
    barred = {loaded.tokenizer.decode([token]) for token in told["logit_bias"]}
    assert barred == set(random_model.SPECIAL) - {loaded.tokenizer.decode([token]) for token in loaded.ends}
    assert set(told["logit_bias"].values()) == {-100.0}
