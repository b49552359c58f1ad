"""Shared fixtures. Tests run in float64 on small problems unless they say otherwise."""

import hashlib
import os
import signal

# Small problems: a second thread only waits for the first, and both for whoever else uses the
# machine. Set before torch starts its threads, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell without job control has its background jobs ignore Ctrl-C, and processes inherit this: the
# processes that tests start and interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from samples import mnist

from hogwild.tasks import terrain


@pytest.fixture(autouse=True, scope="session")
def _no_curves():
    """Runs do not draw their curves, which takes longer than the training of a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hogwild.training.result.curves", lambda *given: None)
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty HOGWILD_DATA, and an empty cache; what ``samples.write_mnist`` writes will do."""
    (tmp_path / "data").mkdir()
    for name, raw in mnist().items():
        monkeypatch.setitem(terrain.SHA256, name, hashlib.sha256(raw).hexdigest())
    monkeypatch.setenv("HOGWILD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOGWILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A function that skips the test unless the user's HOGWILD_DATA holds a file or folder."""
    place = os.environ.get("HOGWILD_DATA")
    monkeypatch.setenv("HOGWILD_CACHE", str(tmp_path / "cache"))

    def need(path):
        if not place:
            pytest.skip(f"HOGWILD_DATA is not set: {path} is not tested")
        if not os.path.exists(os.path.join(place, path)):
            pytest.skip(f"HOGWILD_DATA has no {path}: it is not tested")

    return need
