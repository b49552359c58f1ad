"""A table of values that were made from tensors, for as long as the tensors live unchanged."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch import Tensor

V = TypeVar("V")
Ref = Callable[[], Tensor | None]
Tensors = tuple[Tensor | None, ...]


class Recent(Generic[V]):
    """The last ``size`` values. A value is found by the identity and version of the tensors that it
    was made from (some may be ``None``), and by other options.

    The table keeps no tensor alive, and drops a value as soon as one of its tensors is freed. Torch
    counts changes in place (``Tensor._version``), but does not count those of tensors that were
    made in inference mode: values made from such tensors are not kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[Hashable, tuple[list[Ref], V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, tensors: Tensors, *options: Hashable) -> V | None:
        """The value that was put there for these tensors and options, or ``None``."""
        key = _key(tensors, options)
        found = self._kept.get(key)
        if found is None or any(ref() is not x for ref, x in zip(found[0], tensors, strict=True)):
            return None
        self._kept.move_to_end(key)
        return found[1]

    def put(self, value: V, tensors: Tensors, *options: Hashable) -> None:
        """Keep a value, if changes of its tensors are counted."""
        key = _key(tensors, options)
        if key is not None:
            self._kept[key] = [self._ref(x, key) for x in tensors], value
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)

    def _ref(self, x: Tensor | None, key: Hashable) -> Ref:
        """A weak reference that removes the value when its tensor is freed."""
        if x is None:
            return lambda: None
        return weakref.ref(x, lambda _: self._kept.pop(key, None))


def _key(tensors: Tensors, options: tuple[Hashable, ...]) -> Hashable | None:
    """Identity and version of the tensors, with the options; ``None``: torch counts no versions."""
    found: list[Hashable] = []
    for x in tensors:
        if x is not None and x.is_inference():
            return None
        try:
            found.append(None if x is None else (id(x), x._version, x.data_ptr(), x.shape))
        except RuntimeError:  # torch.func wraps it: it has no memory of its own
            return None
    return tuple(found), options
