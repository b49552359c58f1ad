"""What is proved of a model under asynchrony, and what is measured."""
