r"""Random numbers that are a function of their purpose.

A draw is a hash of (seed, stream name, run, subject, time). No generator is advanced, so a lost
packet does not shift any later delay, a run is the same alone and among others, and every machine
and device draws the same numbers. The hash is the finaliser of SplitMix64 (Steele, Lea & Flood,
2014), applied once for every coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hogwild.errors import require_integer

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(x: int) -> int:
    """The 64-bit pattern of ``x`` as torch's signed integer."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 (arithmetic wraps modulo 2⁶⁴)."""
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


@dataclass(frozen=True)
class Streams:
    """Named random streams of a number of runs: run r of seed s is a function of (s, r) alone."""

    keys: Tensor  # [n] one key for each subject, that of its run
    subjects: Tensor  # [n] the number of each subject within its run
    memo: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        seed: int,
        runs: int,
        count: int,
        device: torch.device | str,
        subjects: Tensor | None = None,
    ) -> Streams:
        """Streams for ``count`` subjects (nodes, edges) in each of ``runs`` runs, run by run.
        Subjects are numbered 0, 1, …, unless ``subjects`` [count] has their numbers."""
        run = torch.arange(runs, device=device).repeat_interleave(count)
        keys = mix(mix(torch.full_like(run, _signed(require_integer("seed", seed)))) ^ run)
        numbers = torch.arange(count, device=device) if subjects is None else subjects.to(device)
        return cls(keys, numbers.repeat(runs))

    def key(self, name: str) -> Tensor:
        """The key of each subject in a stream, [n]: all but the time, hashed once."""
        if name not in self.memo:
            salt = 0xCBF29CE484222325  # FNV-1a of the stream's name
            for byte in name.encode():
                salt = ((salt ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
            self.memo[name] = mix(mix(self.keys ^ _signed(salt)) ^ self.subjects)
        return self.memo[name]

    def uniform(self, name: str, time: int | Tensor, index: Tensor | None = None) -> Tensor:
        """One number in [0, 1) for each subject in ``index`` (default: all), float64."""
        key = self.key(name)
        z = mix((key if index is None else key.index_select(0, index)) ^ time)
        return _shift(z, 11).to(torch.float64).mul_(2.0**-53)

    def integers(
        self, name: str, high: int | Tensor, time: int | Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Uniform integers in 0 … ``high`` inclusive."""
        draw = self.uniform(name, time, index)
        return (draw * (high + 1)).to(torch.long)
