"""Tasks, benchmarks, calibration and training for RL Conductor.

`tasks` has samples and scorers, `workers` a small pool to practise on, `sandbox` runs code of models, `bench` compares
systems, `train` trains conductors, `cli` has the commands.
"""
