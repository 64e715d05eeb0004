from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList

import random_model
from rl_conductor.errors import ConfigError
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint, GrammarLogitsProcessor
from rl_conductor_training.train.policy.logprobs import plan_logprobs
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model
from rl_conductor_training.train.policy.sampling import generate

GBNF = 'root ::= "model_id = [" ("0" | "1" | "2") "]" (" yes" | " no")?'
TEMPERATURE = 0.7
PROMPTS = ([5, 9, 200, 31], [7, 7, 8, 100, 101, 102, 50], [5, 9, 200, 31])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(random_model.make(tmp_path_factory.mktemp("tiny"))), dtype="float32")


@pytest.fixture(scope="module")
def model(loaded: LoadedModel) -> Any:
    return loaded.model.eval()


@pytest.fixture(scope="module")
def grammar(loaded: LoadedModel) -> GrammarConstraint:
    return GrammarConstraint(
        loaded.tokenizer, vocab_size=loaded.model.config.vocab_size, end_tokens=loaded.end_tokens, gbnf=GBNF
    )


def generation_config(model: Any, **options: Any) -> GenerationConfig:
    ends = model.generation_config.eos_token_id
    defaults = {"do_sample": True, "top_k": 0, "temperature": TEMPERATURE, "max_new_tokens": 40}
    return GenerationConfig(**(defaults | options), eos_token_id=ends, pad_token_id=0)


def sampled(
    model: Any, grammar: GrammarConstraint | None, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any
) -> list[list[int]]:
    torch.manual_seed(3)
    return generate(model, prompts, generation_config(model, **options), grammar)


def by_hand(model: Any, prompt: list[int], plan: list[int], allowed: torch.Tensor) -> torch.Tensor:
    """Log p(t) - log Z for each token, with Z the probability of all that is allowed."""
    logits = model(input_ids=torch.tensor([prompt + plan])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    probabilities = logits.double().softmax(-1)
    picked = probabilities[torch.arange(len(plan)), torch.tensor(plan)]
    return picked.log() - (probabilities * allowed).sum(-1).log()


def test_plans_sampled_under_a_grammar_match_it(model: Any, grammar: GrammarConstraint, loaded: LoadedModel) -> None:
    texts = [loaded.tokenizer.decode(plan, skip_special_tokens=True) for plan in sampled(model, grammar, PROMPTS * 5)]
    assert all(text.startswith("model_id = [") for text in texts)
    assert len(set(texts)) > 3
    assert {text.partition("]")[2] for text in texts} <= {"", " yes", " no"}


def test_masked_log_probabilities_match_a_manual_calculation(model: Any, grammar: GrammarConstraint) -> None:
    for prompt, plan in zip(PROMPTS, sampled(model, grammar), strict=True):
        scored = plan_logprobs(model, [prompt], [plan], temperature=TEMPERATURE, grammar=grammar)[0]
        expected = by_hand(model, prompt, plan, grammar.allowed_tokens(plan))
        torch.testing.assert_close(scored.log_probs.double(), expected, atol=1e-5, rtol=1e-4)
        assert (expected < -0.1).any()


def test_without_a_grammar_log_probabilities_are_the_models_own(model: Any) -> None:
    plan = sampled(model, None, max_new_tokens=9)[0]
    scored = plan_logprobs(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, grammar=None)[0]
    expected = by_hand(model, PROMPTS[0], plan, torch.ones(len(plan), model.config.vocab_size))
    torch.testing.assert_close(scored.log_probs.double(), expected, atol=1e-5, rtol=1e-4)


def test_a_token_is_trained_with_its_sampling_probability(model: Any, grammar: GrammarConstraint) -> None:
    torch.manual_seed(5)
    out = model.generate(
        input_ids=torch.tensor([PROMPTS[1]]),
        generation_config=generation_config(model, return_dict_in_generate=True, output_scores=True),
        logits_processor=LogitsProcessorList([GrammarLogitsProcessor(grammar, 1)]),
    )
    plan = out.sequences[0, len(PROMPTS[1]) :].tolist()
    sampled_with = torch.stack(out.scores, 1)[0].log_softmax(-1)[torch.arange(len(plan)), torch.tensor(plan)]
    scored = plan_logprobs(model, [PROMPTS[1]], [plan], temperature=TEMPERATURE, grammar=grammar)[0]
    torch.testing.assert_close(scored.log_probs, sampled_with, atol=1e-5, rtol=1e-4)


def gradient(model: Any, log_prob: torch.Tensor) -> float:
    model.zero_grad()
    log_prob.backward(retain_graph=True)
    return sum(float(weight.grad.abs().sum()) for weight in model.parameters() if weight.grad is not None)


def test_forced_tokens_have_no_gradient(model: Any, grammar: GrammarConstraint) -> None:
    plan = sampled(model, grammar)[0]
    scored = plan_logprobs(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, grammar=grammar)[0]
    choices = grammar.allowed_tokens(plan).sum(-1)
    for place, count in enumerate(choices.tolist()):
        assert (gradient(model, scored.log_probs[place]) > 0) == (count > 1), (place, count)
        assert (scored.entropies[place] > 0) == (count > 1)
    assert 0 < (choices > 1).sum() < len(plan)


def test_the_gradient_is_that_of_log_p_minus_log_z(model: Any, grammar: GrammarConstraint) -> None:
    plan = sampled(model, grammar)[0]
    ours, by_parts = (
        torch.autograd.grad(log_probs.sum(), model.lm_head.weight)[0]
        for log_probs in (
            plan_logprobs(model, [PROMPTS[0]], [plan], temperature=TEMPERATURE, grammar=grammar)[0].log_probs,
            by_hand(model, PROMPTS[0], plan, grammar.allowed_tokens(plan)),
        )
    )
    torch.testing.assert_close(ours, by_parts, atol=1e-5, rtol=1e-3)


COMMON_PREFIX = ([5, 9, 200, 31], [5, 9, 200, 31, 7, 80], [5, 9, 8], [5, 9, 200, 31])


@pytest.mark.parametrize("prompts", [[PROMPTS[0]] * 4, COMMON_PREFIX, (*COMMON_PREFIX[:3], [7, 7])])
@pytest.mark.parametrize("share_prefix", [True, False])
def test_plans_have_the_same_log_probabilities_in_a_batch_and_alone(
    model: Any, grammar: GrammarConstraint, prompts: list[list[int]], share_prefix: bool
) -> None:
    plans = [sampled(model, grammar, PROMPTS * 2)[place] for place in (0, 2, 3, 5)]
    together = plan_logprobs(model, prompts, plans, temperature=TEMPERATURE, grammar=grammar, share_prefix=share_prefix)
    for prompt, plan, scored in zip(prompts, plans, together, strict=True):
        alone = by_hand(model, prompt, plan, grammar.allowed_tokens(plan))
        torch.testing.assert_close(scored.log_probs.double(), alone, atol=1e-5, rtol=1e-4)


def test_a_shared_prefix_gets_gradients_from_every_plan(model: Any, grammar: GrammarConstraint) -> None:
    plans = sampled(model, grammar, PROMPTS * 2)[:4]
    once, anew = (
        torch.autograd.grad(torch.cat([plan.log_probs for plan in scored]).sum(), model.model.embed_tokens.weight)[0]
        for scored in (
            plan_logprobs(
                model, COMMON_PREFIX, plans, temperature=TEMPERATURE, grammar=grammar, share_prefix=share_prefix
            )
            for share_prefix in (True, False)
        )
    )
    torch.testing.assert_close(once, anew, atol=1e-5, rtol=1e-3)
    assert once[COMMON_PREFIX[0]].abs().sum() > 0


def test_a_shared_prefix_does_not_change_the_results(model: Any, grammar: GrammarConstraint) -> None:
    together = sampled(model, grammar, do_sample=False)
    for prompt, plan in zip(PROMPTS, together, strict=True):
        alone = model.generate(
            input_ids=torch.tensor([prompt]),
            generation_config=generation_config(model, do_sample=False),
            logits_processor=LogitsProcessorList([GrammarLogitsProcessor(grammar, 1)]),
        )
        assert plan == alone[0, len(prompt) :].tolist()


def test_a_plan_outside_the_grammar_is_rejected(model: Any, grammar: GrammarConstraint) -> None:
    with pytest.raises(RuntimeError, match="outside"):
        plan_logprobs(model, [PROMPTS[0]], [[5, 6, 7]], temperature=TEMPERATURE, grammar=grammar)


def test_vllm_samples_no_special_tokens_except_end_tokens(loaded: LoadedModel, grammar: GrammarConstraint) -> None:
    options = grammar.vllm_options
    assert options["structured_outputs"] == {"grammar": GBNF}
    blocked = {loaded.tokenizer.decode([token]) for token in options["logit_bias"]}
    assert blocked == set(random_model.SPECIAL) - {loaded.tokenizer.decode([token]) for token in loaded.end_tokens}
    assert set(options["logit_bias"].values()) == {-100.0}


@pytest.mark.parametrize("share_prefix", [True, False])
def test_chunks_of_logits_have_the_same_values_and_gradients(
    model: Any, grammar: GrammarConstraint, share_prefix: bool
) -> None:
    prompts = [PROMPTS[0]] * 3
    plans = sampled(model, grammar, prompts)
    results = []
    for chunk in (None, 3):
        model.zero_grad()
        scored = plan_logprobs(
            model, prompts, plans, temperature=TEMPERATURE, grammar=grammar, share_prefix=share_prefix, chunk=chunk
        )
        log_probs = torch.cat([plan.log_probs for plan in scored])
        log_probs.sum().backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        results.append((log_probs.detach(), torch.cat([plan.entropies for plan in scored]), gradients))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-4)


def largest_saved(model: Any, *, dtype: torch.dtype, chunk: int | None) -> int:
    """The rows of the largest tensor over the vocabulary of this type that is kept for the backward pass."""
    rows = [0]
    vocabulary = model.config.vocab_size
    weights = model.lm_head.weight.untyped_storage().data_ptr()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        is_weight = tensor.untyped_storage().data_ptr() == weights
        if tensor.dtype == dtype and tensor.shape[-1:] == (vocabulary,) and not is_weight:
            rows.append(tensor.numel() // vocabulary)
        return tensor

    plans = [list(range(10, 40))] * 2
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        plan_logprobs(model, [PROMPTS[0]] * 2, plans, temperature=1.0, grammar=None, chunk=chunk)
    return max(rows)


def test_no_probabilities_over_the_vocabulary_are_kept_for_the_backward_pass(loaded: LoadedModel) -> None:
    model = copy.deepcopy(loaded.model).to(torch.bfloat16)
    assert largest_saved(model, dtype=torch.float32, chunk=None) == 0
    assert largest_saved(model, dtype=torch.bfloat16, chunk=None) > 2  # the logits themselves
    assert largest_saved(model, dtype=torch.bfloat16, chunk=8) <= 2


class Capped(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model that changes its logits after the last layer, as Gemma 2 does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model
        self.device = model.device

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()

    def forward(self, **inputs: Any) -> Any:
        output = self.inner(**inputs)
        output.logits = 0.01 * torch.tanh(output.logits / 0.01)
        return output


def test_chunks_are_refused_for_a_model_that_changes_its_logits(model: Any) -> None:
    capped = Capped(model)
    plan_logprobs(capped, [PROMPTS[0]], [[5, 6]], temperature=1.0, grammar=None)
    with pytest.raises(ConfigError, match=r"grpo\.loss_chunk does not support this model"):
        plan_logprobs(capped, [PROMPTS[0]], [[5, 6]], temperature=1.0, grammar=None, chunk=8)
