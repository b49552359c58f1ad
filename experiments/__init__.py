"""Every table and figure of the paper. From the root of the repository: ``python -m experiments``.

:mod:`experiments.registry` has all experiments by name, :mod:`experiments.experiment` the one
mechanism behind them. This module imports nothing, so that the help does not wait for torch.
"""
