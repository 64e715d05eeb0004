"""Trains a planner on a table of experience: questions, plans and scores that are already known. No worker is called.

In: the scored plans of each question. Out: a LoRA adapter, the best one on validation questions. Only `table` and
`prompt` can be imported without torch.
"""
