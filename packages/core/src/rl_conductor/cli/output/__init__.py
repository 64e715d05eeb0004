"""Terminal output of the command line: the console, live progress, reports of runs, and diagrams of workflows.

Takes events, traces and workflows, and prints them or returns rich renderables.
"""
