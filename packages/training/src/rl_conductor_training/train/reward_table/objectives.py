"""The losses of a question, given the score of each of its plans.

`p` is the model's probability of a plan and `q` the same normalised over the plans of the table:

    q_i = p_i / sum_j p_j,    J = sum_i q_i r_i

`expectation` maximises `J` itself, so its gradient is the policy gradient without sampling noise. `groups` estimates it
from a sampled group, with the mean reward of the others as the baseline, which leaves it unbiased (RLOO, Ahmadian et
al. 2024). `raft` maximises the likelihood of the right plans of such a group (RAFT, Dong et al. 2023). The first two
also maximise the entropy of `q`, and `log sum_j p_j`, since `q` alone does not tell how probable the table's plans are.
"""

from __future__ import annotations

import torch

from rl_conductor_training.train.reward_table.table import TableSettings


def question_loss(log_probs: torch.Tensor, scores: torch.Tensor, settings: TableSettings) -> torch.Tensor:
    """Computes the loss of one question by the method of the settings.

    Args:
        log_probs: the log-probability of each plan.
        scores: the score of each plan.
        settings: the method and its weights.
    """
    if settings.method == "raft":
        return raft_loss(log_probs, scores, settings.group_size)
    log_q = log_probs.log_softmax(0)
    if settings.method == "expectation":
        loss = -(log_q.exp() * scores).sum()
    else:
        loss = group_loss(log_q, scores, settings.group_size)
    entropy = -(log_q.exp() * log_q).sum()
    return loss - settings.entropy * entropy - settings.support * log_probs.logsumexp(0)


def group_loss(log_q: torch.Tensor, scores: torch.Tensor, size: int) -> torch.Tensor:
    """Estimates the negative expected score from a sampled group; its gradient is unbiased."""
    sampled = torch.multinomial(log_q.detach().exp(), size, replacement=True)
    rewards = scores[sampled]
    baselines = (rewards.sum() - rewards) / (size - 1)
    return -((rewards - baselines) * log_q[sampled]).mean()


def raft_loss(log_probs: torch.Tensor, scores: torch.Tensor, size: int) -> torch.Tensor:
    """Computes the negative log-likelihood of the best plans of a sampled group; 0 if all scores are 0."""
    sampled = torch.multinomial(log_probs.detach().softmax(0), size, replacement=True)
    rewards = scores[sampled]
    best = sampled[(rewards == rewards.max()) & (rewards > 0)]
    return -log_probs[best].mean() if len(best) else log_probs.sum() * 0
