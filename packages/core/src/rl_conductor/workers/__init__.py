"""Workers made of a base model and something it lacks: an interpreter, a library to look things up in.

Each is a `Model` like any other, for any base model, and goes by `model("coder:openai:gpt-5")` too.
"""
