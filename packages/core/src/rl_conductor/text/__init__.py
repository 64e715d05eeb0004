"""Handles text of messages. Pure.

`delimiters` encloses untrusted text in tags that no reply can forge; `reasoning` separates reasoning from the answer;
`features` hashes the words of a text for classifiers.
"""
