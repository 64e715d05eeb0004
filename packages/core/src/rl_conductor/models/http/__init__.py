"""What all adapters of HTTP APIs share: the base class, connections, and the limit on the size of replies."""
