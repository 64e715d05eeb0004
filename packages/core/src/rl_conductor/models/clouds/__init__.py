"""Amazon Bedrock and Google Vertex AI: their settings, shared by several adapters, and the choice of an adapter.

In: the name of a model on a cloud. Out: the adapter of the protocol that the model has there.
"""
