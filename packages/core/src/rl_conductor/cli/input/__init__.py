"""Input of the command line: questions and attached files, saved runs and workflows, and files of variables.

In: arguments, paths and stdin. Out: requests, traces and workflows.
"""
