"""`rl-conductor a2a`: a conductor as an agent that speaks the Agent2Agent protocol.

In: a conductor. Out: an HTTP server with the agent's card and its JSON-RPC endpoint.
"""
