"""Google's models: the adapter, and the translation to and from `generateContent`."""
