"""Workers that wrap a base model and add a tool: a Python interpreter, a searchable library, a style sheet.

In: a base model, as in `model("coder:openai:gpt-6-sol")`. Out: a `Model`; also the pools of benchmarks and trainings.
"""
