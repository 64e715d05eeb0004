"""The LangGraph integration: a node that plans, runs the plan as a subgraph, and can be reviewed and resumed."""
