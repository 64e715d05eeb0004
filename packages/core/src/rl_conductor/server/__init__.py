"""The pool behind one name, over HTTP, in OpenAI's and Anthropic's protocols; runs outlive a crash."""
