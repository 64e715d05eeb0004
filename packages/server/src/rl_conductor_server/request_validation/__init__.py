"""Validates request bodies: their size in elements, their fields, and that tool results follow their calls.

Fields without effect here are ignored or rejected; errors name the path of the field.
"""
