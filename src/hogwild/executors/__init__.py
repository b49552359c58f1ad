"""The simulator, and other ways to run a rule on a graph."""
