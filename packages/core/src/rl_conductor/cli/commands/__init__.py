"""The commands of this package, one module each. In: options. Out: calls of the core, and text for the terminal."""
