"""Compiled code that solves problems, and computes the updates of nodes, on a CPU and on a GPU."""
