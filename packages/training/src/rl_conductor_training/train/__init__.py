"""Trains a Conductor with TRL's GRPO: plans are sampled, executed by real workers and rewarded.

In: a training file (`config.py`). Out: a run directory (`run_dir.py`) with checkpoints, logged plans and the model.
"""
