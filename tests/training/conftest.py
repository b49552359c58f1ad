"""A run that is trained once for all tests of training."""

import shutil

import pytest
from tiny_runs import QUICK
from tiny_tasks import Sums

from hogwild import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The result of a small run with the options ``QUICK``, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "quick"
    return train(Sums(), folder=folder, **QUICK), folder


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of the folder of that run."""
    return shutil.copytree(trained[1], tmp_path / "run")
