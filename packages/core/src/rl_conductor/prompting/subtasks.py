"""The subtasks of steps that no planner wrote, such as those of fallback plans."""

ANSWER = "Answer the overall task."
VERIFY = "Check the earlier reply, correct what is wrong in it, and give the complete answer to the overall task."
