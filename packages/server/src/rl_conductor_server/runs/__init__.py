"""Runs in progress: admission control, admitted requests, tasks, handles and resumption."""
