"""Supervised fine-tuning (SFT) before reinforcement learning, on plans that led to right answers.

In: a training setup and, optionally, a file of demonstrations. Out: the model that GRPO begins with.
"""
