"""Learners: each turns the table of experience into a conductor. Anyone can add theirs; see `Learner`."""
