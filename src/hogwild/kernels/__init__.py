"""Compiled code, and how it is built, loaded and called.

``source/`` holds the C++ and CUDA sources, :mod:`~hogwild.kernels.build` compiles them, and
:mod:`~hogwild.kernels.native` loads the library.
"""
