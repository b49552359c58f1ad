"""How far a run on parts is from the exact answer."""

import copy
from dataclasses import replace

import torch
from kernel_cases import on_torch

from hogwild import Inputs


def exact(model, data):
    """The exact embeddings for the features as the model standardises them, in float64."""
    twin, inputs = copy.deepcopy(model).double(), model.encoded(Inputs.of(data))
    twin.conv.solver = replace(twin.conv.solver, atol=1e-14)
    twin.conv.on_failure, twin.conv.solve_dtype = "ignore", torch.float64
    with torch.no_grad(), on_torch():
        return twin.conv.embed(inputs.to(torch.float64)).value


def distance(run, model, data):
    """From the exact embeddings, in the norm of the error bar; of the worst replica."""
    gap = run.h.double() - exact(model, data)
    if "largest" in run.error_bar.norm:
        return float(gap.abs().max())
    return float(gap.flatten(-2).norm(dim=-1).max())
