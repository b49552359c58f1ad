"""Shared fixtures. Tests run in float64 on small problems unless they say otherwise."""

import os

# Small problems: a second thread only waits for the first, and both for whoever else uses the
# machine. Set before torch starts its threads, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param
