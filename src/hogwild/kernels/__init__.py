"""Compiled solves: the whole of Newton's method in C++, graph by graph.

``source/`` holds the C++; :mod:`~hogwild.kernels.build` compiles it, :mod:`~hogwild.kernels.native`
loads it, and :mod:`~hogwild.engines.energy` poses energies to it.
"""
