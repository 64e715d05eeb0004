"""Learned routers, which choose workers by a question's embedding; trained on the calibration samples.

They are small reimplementations after the papers, because the maintained library that has RouterDC (LLMRouter, arXiv
2608.06867) needs torch and CUDA, and use static embeddings (wordllama) where the papers use a sentence encoder.
"""
