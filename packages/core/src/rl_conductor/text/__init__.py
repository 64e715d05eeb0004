"""Handles text written by models. Pure.

`delimiters` encloses untrusted text in tags that no reply can forge; `reasoning` separates reasoning from the answer.
"""
