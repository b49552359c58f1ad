"""What is proved about a model under asynchrony, and what is measured."""
