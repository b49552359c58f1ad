"""Every table and figure of the paper. From the root of the repository: ``python -m experiments``.

:mod:`experiments.registry` has all experiments by name. :mod:`experiments.experiment` has the
mechanism that all of them use. This module imports nothing, so that the help does not wait for
torch.
"""
