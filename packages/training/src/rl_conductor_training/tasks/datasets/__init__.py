"""Public data sets, procedural ones and users' own files, loaded as tasks.

In: a local file, a data set of the model hub or a seed. Out: a `Task` of samples with its scorer.
"""
