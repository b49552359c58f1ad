"""The page from Python."""

import asyncio
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.web.show import show

SCRIPT = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from hogwild.web.show import show

path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
model = GraphSAGE(1, 4, num_layers=2, out_channels=1).eval()
show(model, Data(x=torch.randn(3, 1), edge_index=path), port=0)
print("and so on")
"""


def case():
    torch.manual_seed(0)
    return EnergyGNN(3, out_channels=1, beta=1.0).double(), Data(
        x=torch.randn(4, 3, **DOUBLE), edge_index=chain(4)
    )


def test_a_notebook_goes_on_beside_the_page(capsys):
    """A notebook's cells run in an event loop; two pages may be shown at once."""

    async def cell():
        return show(*case(), port=0), show(*case(), port=0)

    for where in asyncio.run(cell()):
        with urllib.request.urlopen(where, timeout=30) as page:
            assert "<h1>" in page.read().decode()
    assert capsys.readouterr().err.count("ends with this program") == 2


def test_a_script_waits_for_ctrl_c():
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        where = None
        while where is None and (line := script.stderr.readline()):
            where = re.search(r"http://\S+/", line)
        with urllib.request.urlopen(where.group(), timeout=30) as page:
            assert page.status == 200
        script.send_signal(signal.SIGINT)
        out, _ = script.communicate(timeout=30)
    finally:
        script.kill()
        script.communicate()
    assert (script.returncode, out) == (0, "and so on\n")


def test_what_cannot_be_shown_is_refused():
    model, data = case()
    with pytest.raises(ConfigError, match=r"the graph is a Tensor; expected one torch_geometric"):
        show(model, data.x)
    with torch.no_grad():
        next(model.readout.parameters()).fill_(float("nan"))
    with pytest.raises(ConfigError, match="the model answers NaN or infinity"):
        show(model, data)
    with pytest.raises(ConfigError, match="expected a row for every node"):
        show(EnergyGNN(3, out_channels=1, pool="mean").double(), data)
    one_way = Data(x=data.x, edge_index=data.edge_index[:, data.edge_index[0] < data.edge_index[1]])
    with pytest.raises(AsynchronyError, match="edges have no reverse link"):
        show(EnergyGNN(3, out_channels=1).double(), one_way)
