"""The style of all pictures, and how a figure is opened and saved.

The colours are from the palette of Okabe and Ito, which people with any colour vision can tell
apart. Line styles and positions carry the same information.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.errors import ConfigError
from hogwild.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, BLUE, RED, GREEN, ORANGE, GREY = (
    "#222222", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#B0B0B0",
)  # fmt: skip
CYCLE = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9")
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
"""Line styles in the order of the cycle, for grey printers."""
DASHED: dict[str, Any] = {"color": RED, "linestyle": (0, (4, 2)), "linewidth": 1.1}
"""The look of what is synchronous."""

STYLE = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7.0,
    "grid.linewidth": 0.3,
    "figure.titlesize": 9.0,
    "lines.linewidth": 1.1,
    "savefig.dpi": 220,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def look(number: int) -> dict[str, Any]:
    """The colour and the line style of the curve with this number."""
    return {"color": CYCLE[number % len(CYCLE)], "linestyle": DASHES[number % len(DASHES)]}


def per_cent(value: float, _: float) -> str:
    """A mark of an axis of shares."""
    return f"{100 * value:.3g} %"


def need(name: str) -> Any:
    """Import a module that the extra ``plots`` installs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name.partition('.')[0]} is missing, which pictures and data frames need; install "
            f"it with: pip install 'hogwild-gnn[plots]'"
        ) from error


@cache
def _shown() -> type[Figure]:
    """Figures that a notebook shows, also where nobody has imported pyplot."""

    class Shown(need("matplotlib.figure").Figure):  # type: ignore[misc]
        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    return Shown


@contextmanager
def figure(width: float, height: float, path: str | Path | None = None) -> Iterator[Figure]:
    """A figure of this size in inches; it is saved at the end of the context if there is a path."""
    with need("matplotlib").rc_context(STYLE):
        # Not through pyplot: no window, no state shared with the caller's own figures.
        fig = _shown()(figsize=(width, height), layout="constrained")
        yield fig
        if path is not None:
            where, picture = Path(path), io.BytesIO()
            check_format(where, f"path={str(path)!r}")
            fig.savefig(picture, format=where.suffix[1:].lower())
            write_atomically(where, picture.getvalue())


def check_format(path: Path, given: str) -> None:
    """Raise unless the path ends in a picture's format; ``given`` is what the user gave."""
    known = need("matplotlib.backend_bases").FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ConfigError(
            f"{given} does not end in a picture's format; expected one of "
            f"{', '.join(sorted(known))}"
        )
