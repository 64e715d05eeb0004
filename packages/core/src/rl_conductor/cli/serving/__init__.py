"""Serving a conductor to other programs, for the commands `a2a` and `mcp`: an HTTP server, and a run as clients see it.

In: an ASGI application, and the events and the trace of a run. Out: a server that runs until it is stopped, and replies
to its clients.
"""
