"""In-process Hugging Face transformers, with chat templates and grammar-constrained decoding."""
