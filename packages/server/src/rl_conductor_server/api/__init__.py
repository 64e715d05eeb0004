"""The vendors' HTTP APIs, a folder each, and the code that they share.

In: request bodies. Out: responses and server-sent events in the vendor's format.
"""
