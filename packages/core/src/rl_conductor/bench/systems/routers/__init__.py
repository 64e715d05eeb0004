"""Learned routers: each question goes to workers that a small model of embeddings has learned to choose.

They are our own, small and after the papers: the one maintained library that has RouterDC (LLMRouter, arXiv 2608.06867)
needs torch and CUDA. All see questions as static embeddings (wordllama), where the papers use a sentence encoder, and
learn from the calibration samples alone.
"""
