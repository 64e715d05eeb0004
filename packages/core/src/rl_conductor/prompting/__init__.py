"""The prompts of planners and workers, word by word. Pure.

In: a conversation, the cards of workers, and the replies of earlier steps. Out: messages, and the version of all
prompts.
"""
