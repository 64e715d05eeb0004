"""The HTTP APIs: one folder for each vendor's protocol, and what they share.

In: request bodies. Out: replies and server-sent events in the vendor's shape.
"""
