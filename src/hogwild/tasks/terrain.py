r"""Terrain: agents scattered over an image agree on what it shows.

**Data.** The MNIST images of digits 0 and 1 (all 14,780, training and test set together), resized
from 28 × 28 to 10 × 10 (bilinear with antialiasing; the paper does not say how). Ten agents stand
on distinct random pixels; an agent's features are its coordinates and the pixel's value,
[row / 9, column / 9, value] with values in [0, 1]. Agents at most 5 pixels apart are joined (graphs
may fall apart; the paper does not exclude it). Every agent predicts the digit.

**Protocol.** 10 folds. **Loss** binary cross-entropy (one logit). **Metric** the share of agents
that are wrong.

**Files.** The four ``*-ubyte.gz`` under ``$HOGWILD_DATA/MNIST/raw``, or downloaded into the cache.
The SHA-256 of their uncompressed content is checked.
"""

from __future__ import annotations

import gzip
import hashlib
import urllib.request
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial.distance import pdist, squareform
from torch_geometric.data import Data

from hogwild.errors import ConfigError, DataError, require_positive
from hogwild.files import write_atomically
from hogwild.metrics import CROSS_ENTROPY, ERROR
from hogwild.tasks.base import Task
from hogwild.tasks.benchmarks import absent, cache_home, data_home
from hogwild.tasks.synthetic import undirected

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
FOLDER = "MNIST/raw"
SHA256 = {
    "train-images-idx3": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


class Terrain(Task):
    """Is the image a 0 or a 1?

    Args:
        num_graphs: Images, drawn at random from all; ``None``: all 14,780, in MNIST's order.
        agents: Pixels with an agent.
        side: Images are resized to ``side`` × ``side``.
        radius: Agents at most this many pixels apart are neighbours.
        seed: The seed of the choice of images and of the agents' places.
        download: Whether missing files may be downloaded.
    """

    name = "terrain"
    minimised, reported = CROSS_ENTROPY, ERROR
    in_channels = 3
    out_channels = 1

    def __init__(
        self,
        num_graphs: int | None = None,
        agents: int = 10,
        side: int = 10,
        radius: float = 5.0,
        *,
        seed: int = 0,
        download: bool = True,
    ) -> None:
        require_positive("agents", agents)
        require_positive("side", side)
        if agents > side * side:
            raise ConfigError(f"agents={agents} on {side} × {side} pixels; expected one a pixel")
        if not radius > 0:
            raise ConfigError(f"radius={radius!r}; expected a positive number of pixels")
        images = np.concatenate([idx(f"{s}-images-idx3", download) for s in ("train", "t10k")])
        labels = np.concatenate([idx(f"{s}-labels-idx1", download) for s in ("train", "t10k")])
        chosen = np.nonzero(labels < 2)[0]
        if num_graphs is not None:
            require_positive("num_graphs", num_graphs)
            if num_graphs > len(chosen):
                raise ConfigError(
                    f"num_graphs={num_graphs}; MNIST has {len(chosen)} images of 0 and 1"
                )
            chosen = np.random.default_rng(seed).permutation(chosen)[:num_graphs]
        small = resize(images[chosen], side)
        self.graphs = [
            scatter(image, int(label), agents, radius, np.random.default_rng([seed, int(g)]))
            for g, image, label in zip(chosen, small, labels[chosen], strict=True)
        ]


def scatter(
    image: np.ndarray, label: int, agents: int, radius: float, random: np.random.Generator
) -> Data:
    """Agents on distinct pixels of one image [s, s]."""
    side = len(image)
    place = random.choice(side * side, agents, replace=False)
    position = np.stack(np.divmod(place, side), -1)  # [agents, 2]: row, column
    i, j = np.nonzero(np.triu(squareform(pdist(position)) <= radius, 1))
    x = np.concatenate([position / max(side - 1, 1), image.reshape(-1, 1)[place]], 1)
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=undirected(i, j),
        y=torch.full((agents,), label),
    )


def resize(images: np.ndarray, side: int) -> np.ndarray:
    """Bytes [n, h, w] as values in [0, 1], [n, side, side]."""
    value = torch.from_numpy(images).float()[:, None] / 255
    small = F.interpolate(value, (side, side), mode="bilinear", antialias=True)
    return small[:, 0].clamp(0, 1).numpy()


def idx(name: str, download: bool = True) -> np.ndarray:
    """One of MNIST's files, from ``$HOGWILD_DATA``, the cache or the network, checked."""
    file = f"{FOLDER}/{name}-ubyte.gz"
    home, cached = data_home(), cache_home() / file
    for path in ([] if home is None else [home / file]) + [cached]:
        if path.is_file():
            return parse(_checked(name, path.read_bytes(), str(path)))
    if not download:
        raise absent("MNIST", file, "nothing was downloaded before")
    url = f"{MIRROR}/{cached.name}"
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            packed = reply.read()
    except OSError as error:
        raise absent("MNIST", file, f"downloading {url} failed ({error})") from error
    raw = _checked(name, packed, url)
    write_atomically(cached, packed)
    return parse(raw)


def _checked(name: str, packed: bytes, where: str) -> bytes:
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        raw = b""
    if hashlib.sha256(raw).hexdigest() != SHA256[name]:
        raise DataError(
            f"{where} is damaged or another data set; expected MNIST's {name}, with SHA-256 "
            f"{SHA256[name]}: remove it"
        )
    return raw


def parse(raw: bytes) -> np.ndarray:
    """The IDX format, bytes: two zeros, 0x08, the number of dimensions, big-endian sizes, data."""
    sizes = np.frombuffer(raw, ">u4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes).copy()
