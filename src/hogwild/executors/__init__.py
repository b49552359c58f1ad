"""Ways to run a model's rule: simulated asynchrony for now."""
