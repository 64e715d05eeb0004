"""An OpenAI- and Anthropic-compatible server over RL Conductor.

The way of a request: `api` (parse) -> `auth` (key, budget) -> `runs` (claim, run, resume) -> `store` (record) -> `api`
(reply). `experiments` runs shadows and canaries beside it, `web` shows the pages, `cli` has the commands.
"""
