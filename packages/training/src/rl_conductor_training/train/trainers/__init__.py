"""Trainers of Hugging Face as our trainings use them: arguments, callbacks, and `ConductorTrainer` over that of TRL.

In: a `TrainConfig`, rollouts and their rewards. Out: steps, metrics and checkpoints.
"""
