"""Ways to run a model's rule."""
