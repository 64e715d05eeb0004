"""Shared code of the adapters of HTTP APIs: the base class, connections, and the limit on the size of replies."""
