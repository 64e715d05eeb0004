"""An OpenAI- and Anthropic-compatible server over RL Conductor.

The path of a request: `auth` (key, rate limit) -> `api` (parse) -> `runs` (admit, run or resume) -> `store` (record) ->
`api` (response). `experiments` has shadows and canaries, `web` the pages, `cli` the commands.
"""
