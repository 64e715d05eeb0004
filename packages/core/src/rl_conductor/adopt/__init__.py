"""Adopting a Conductor in stages: what today's requests cost and how they fail, before anything is changed."""
