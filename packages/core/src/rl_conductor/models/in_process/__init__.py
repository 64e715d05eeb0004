"""Shared code of the engines that run models in this process.

Imports none of their libraries, except in `checkpoint` (transformers) and `images` (pillow).
"""
