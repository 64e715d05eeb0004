"""Benchmarks: compares systems on the same samples and workers, and measures the cost of each.

In: a bench file of tasks, pools and systems. Out: `rows.jsonl` with a result per system and sample, and a report. It
also measures workers (`calibration`).
"""
