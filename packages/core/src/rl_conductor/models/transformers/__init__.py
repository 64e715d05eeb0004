"""Hugging Face transformers in this process, with grammars and chat templates."""
