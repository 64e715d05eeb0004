"""Tasks, benchmarks, calibration and training for RL Conductor.

`tasks` has samples and scorers, `workers` a small pool to practise on, `sandbox` runs code of models, `bench` compares
systems, `train` trains conductors, `learn` learns for given workers, `evals` are checks in other tools,
`pytest_plugin` is one of them, `cli` has the commands.
"""
