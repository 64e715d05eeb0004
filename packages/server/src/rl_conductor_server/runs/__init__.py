"""Runs in progress: the queue, admitted requests, tasks, handles and resumption."""
