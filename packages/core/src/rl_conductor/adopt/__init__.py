"""Adopting a Conductor in stages: what requests cost today, whose answers are better, and when a trial has to end."""
