"""What a node refuses: each error says what was given, what was expected and what to do."""

from __future__ import annotations


class NodeError(Exception):
    """Everything that this package raises on purpose."""


class ModelFileError(NodeError):
    """A model file is missing, damaged, or of another version."""


class SetupError(NodeError):
    """An agent was given something that it cannot use: features, neighbours, addresses, options."""


class TransportError(NodeError):
    """The network cannot be reached: a port is taken, or a certificate is missing."""
