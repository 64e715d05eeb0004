"""The language model that is trained: loading, prompt encoding, grammar-constrained sampling, log-probabilities.

In: model names, chat messages and token ids. Out: sampled plans as tokens and their log-probabilities. Needs torch.
"""
