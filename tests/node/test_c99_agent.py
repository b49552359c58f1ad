"""An agent in C speaks with agents in Python."""

import ctypes
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from c_nodes import CC, CAgent, Library, compiled, filed
from helpers import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_swarm import Swarm, sealed
from node.test_packets import WRONG

from hogwild import GSDGNN, IGNN, EnergyGNN, SoftEnergyGNN
from hogwild_node.agent import Edge
from hogwild_node.c99 import generate
from hogwild_node.packets import DATA, HELLO, Format

pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2, beta=1.0),
    "denoising": lambda: GSDGNN(3, out_channels=2),
    "soft": lambda: SoftEnergyGNN(3, out_channels=2, hidden_channels=3, edge_dim=2, condition=7.0),
    "ignn": lambda: IGNN(3, out_channels=2),
}


class Mixed(Swarm):
    """A swarm whose nodes in ``in_c`` run in C."""

    def __init__(self, model, edge_index, n, in_c, dtype="float64", skew=0.0, **options):
        self.in_c, self.skew, self.starts = in_c, skew, 0
        self.library = Library(filed(model.double().eval()), dtype)
        super().__init__(model, edge_index, n, precision=dtype, **options)

    def start(self, i, **options):
        if i not in self.in_c:
            return super().start(i, **options)
        self.starts += 1
        return CAgent(
            self.library, self.x[i].numpy(), self.network.endpoint(str(i)), self.network.clock,
            self.near(i), incarnation=1000 + self.starts, skew=self.skew,
        )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_agents_in_c_and_in_python_find_the_answer_together(name):
    """With delays and losses, and with clocks that differ by a day."""
    rule = {} if name == "ignn" else {"rule": "gradient"}
    torch.manual_seed(0)
    model = MODELS[name]()
    if name == "soft":  # fresh parameters ignore the features of edges
        for p in model.conv.parameters():
            p.data.add_(torch.randn_like(p))
    swarm = Mixed(model, chain(4), 4, {0, 2}, loss=0.2, skew=86400.0, **rule)
    swarm.run(120.0)
    assert swarm.error() < 1e-6
    assert all(swarm.agents[i].settled for i in (0, 2))
    assert all(swarm.agents[i].calm >= 2.0 for i in (1, 3))  # what C says of its calm is heard
    # Both kinds of agents have three links, and drop packets that newer ones have overtaken.
    in_c = sum(swarm.agents[i].dropped for i in (0, 2))
    in_python = sum(swarm.agents[i].counts["dropped"] for i in (1, 3))
    assert 0.7 * in_python < in_c < 1.3 * in_python


def test_an_agent_in_c_drops_the_dead_and_meets_them_again():
    swarm = Mixed(MODELS["energy"](), chain(4), 4, {1, 2}, rule="gradient")
    swarm.run(60.0)
    assert swarm.error() < 1e-5
    gone = swarm.agents.pop(3)
    gone.transport.close()
    swarm.run(60.0)
    assert swarm.error([0, 1, 2]) < 1e-5
    swarm.agents[3] = swarm.start(3)
    swarm.run(60.0)
    assert swarm.error() < 1e-5
    crashed = swarm.agents.pop(2)  # C restarts with another incarnation
    crashed.transport.close()
    swarm.agents[2] = swarm.start(2)
    swarm.run(80.0)
    assert swarm.error() < 1e-5


def test_an_agent_in_c_names_the_neighbours_without_which_it_has_settled():
    swarm = Mixed(MODELS["energy"](), chain(2), 2, {0}, skew=86400.0, rule="gradient")
    one, other = swarm.agents[0], swarm.agents.pop(1)
    swarm.run(1.5)  # a new neighbour has a lease to answer
    assert (one.settled, one.silent) == (False, ())
    swarm.run(8.0)
    assert (one.settled, one.silent) == (True, ("1",))
    swarm.agents[1] = other
    swarm.run(40.0)
    assert (one.settled, one.silent) == (True, ())
    swarm.agents.pop(1).transport.close()
    swarm.run(8.0)
    assert (one.settled, one.silent) == (True, ("1",))
    assert not any(map(one.is_silent, (-1, 1, 8)))  # no link in these slots


class Packets:
    """The packets of one library, and the format in Python."""

    def __init__(self, dtype):
        torch.manual_seed(0)
        file = filed(MODELS["energy"]().double())
        self.library = Library(file, dtype)
        self.format = Format(file.name, "gradient", 3, 2, 2 + 4, 2, 2, dtype)


class Header(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int), ("incarnation", ctypes.c_uint32), ("sequence", ctypes.c_uint32),
        ("to", ctypes.c_uint32), ("revision", ctypes.c_uint16), ("known", ctypes.c_uint16),
        ("time", ctypes.c_double), ("calm", ctypes.c_float),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["float32", "float64"])
def packets(request):
    return Packets(request.param)


def test_bytes_are_those_of_the_format(packets):
    form, c = packets.format, packets.library.c
    fields = {"sequence": 9, "to": 2**32 - 1, "revision": 65535, "known": 4}
    fields |= {"time": 1.5e9, "calm": 0.25}
    numbers = np.arange(1.0, 8.0)
    block = np.array([[5.0, 6.0], [6.0, 7.0]])
    letter = np.concatenate([numbers[2:4], block.ravel()])
    for kind, sent, expected in (
        (DATA, numbers, form.data(form.header(7, DATA, **fields), numbers[:2], letter)),
        (HELLO, numbers[:4], form.hello(form.header(7, HELLO, **fields), 1.0, numbers[1:4])),
    ):
        raw = ctypes.create_string_buffer(200)
        kept, pointer = packets.library.pointer(sent)
        size = c.hog_write(ctypes.byref(Header(kind, 7, **fields)), pointer, raw)
        assert raw.raw[:size] == expected
        header, found = Header(), np.zeros_like(kept)
        assert c.hog_read(expected, ctypes.c_size_t(len(expected)), ctypes.byref(header)) == kind
        assert all(getattr(header, name) == value for name, value in fields.items())
        assert c.hog_read_numbers(
            expected, ctypes.byref(header), found.ctypes.data_as(ctypes.c_void_p)
        )
        np.testing.assert_array_equal(found, kept)


def test_packets_that_do_not_fit_are_refused(packets):
    form, c = packets.format, packets.library.c
    said, letter = np.zeros(2), np.zeros(6)
    good = form.data(form.header(1), said, letter)
    hello = form.hello(form.header(1, HELLO), 2.0, np.zeros(3))
    nan, end = struct.pack("<d", np.nan), -form.number.itemsize

    def read(raw):
        header, numbers = Header(), np.zeros(16, packets.library.dtype)
        if c.hog_read(raw, ctypes.c_size_t(len(raw)), ctypes.byref(header)) < 0:
            return False
        pointer = numbers.ctypes.data_as(ctypes.c_void_p)
        return bool(c.hog_read_numbers(raw, ctypes.byref(header), pointer))

    assert read(good)
    assert read(hello)
    bad = [change(good) for change, why in WRONG if why != "damaged"] + [
        b"", good[:end] + np.array([np.inf], form.number).tobytes(), hello[:-8] + nan,
        hello[:40] + struct.pack("<d", 0.5) + hello[48:],
    ]  # fmt: skip
    if form.precision == "float32":
        bad.append(hello[:-8] + struct.pack("<d", 1e300))
    assert not any(map(read, bad))
    assert not any(read(sealed(raw)) for raw in bad if len(raw) >= 40)
    for place in range(8, len(good)):  # damage on the way
        assert not read(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 1))
def test_malformed_packets_never_enter(packets, raw, start):
    form = packets.format
    good = form.data(form.header(1), np.zeros(2), np.zeros(6))
    library = packets.library

    class Nowhere:
        connect = staticmethod(lambda neighbours: None)

    agent = CAgent(library, np.ones(3), Nowhere(), lambda: 0.0, {"a": Edge()}, incarnation=5)
    before = agent.state.raw
    assert not agent.receive(0, good[: 8 * start] + raw, 1.0)
    assert not agent.receive(3, good, 1.0)  # no link in this slot
    assert not agent.receive(0, good, 1.0)  # data before a hello
    assert agent.state.raw == before


STUBS = """
int arrived(hog_real *numbers);
void transmit(const hog_real *numbers);
uint32_t random_number(void);
double seconds(void);
size_t read_from(int slot, uint8_t *raw, size_t size);
void send_to(int slot, const uint8_t *raw, size_t size);
"""


def test_the_programs_in_the_documentation_compile():
    text = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
    programs = re.findall(r"```c\n(.*?)```", text, re.S)
    assert len(programs) == 2
    given = "const hog_real *features, const hog_real *neighbour_features, hog_real "
    given += "neighbour_degree"
    for program in programs:
        body = "".join(line for line in program.splitlines(True) if not line.startswith("#"))
        head = f"void example({given})"
        unused = "(void)neighbour_features; (void)neighbour_degree;"
        main = f"{STUBS}{head};\n{head}\n{{\n{unused}\n{body}}}\n"
        node = generate(filed(MODELS["energy"]()))
        shutil.rmtree(compiled(node, "-O0", "-shared", "-fPIC", main=main).parent)
