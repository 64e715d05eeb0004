"""`rl-conductor mcp`: a conductor as a server of the Model Context Protocol.

In: a conductor. Out: an MCP server with the tool `ask`, over stdin and stdout or over HTTP.
"""
