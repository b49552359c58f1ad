"""Graphs that outgrow one machine."""
