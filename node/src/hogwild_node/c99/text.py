"""C text: numbers, tables and networks.

The functions of networks know nothing of nodes and agents, so that other programs can use them,
too.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from hogwild_node.errors import ModelFileError
from hogwild_node.networks import FEATURE_SLOPE, PICNNParameters
from hogwild_node.ops import NUMPY, Array


def part(name: str) -> str:
    """A file of the folder ``parts``."""
    return files("hogwild_node.c99").joinpath("parts", name).read_text("utf-8")


def literal(x: float, dtype: str) -> str:
    """A number as a C constant with all its digits."""
    with np.errstate(over="ignore"):
        number = np.float32(x) if dtype == "float32" else np.float64(x)
    if not np.isfinite(number):
        raise ModelFileError(
            f"the model has the number {x!r}, which is not finite in {dtype}; expected finite "
            f"parameters: train the model again, or generate float64"
        )
    return f"{number!s}f" if dtype == "float32" else str(number)


def table(name: str, values: Array, dtype: str) -> str:
    """A constant array, row by row; a stack of matrices [H, a, b] has the size [H][a b]."""
    flat = np.asarray(values, np.float64)
    sets = flat.reshape(flat.shape[0], -1) if flat.ndim == 3 else flat.reshape(1, -1)
    size = f"[{sets.shape[0]}][{sets.shape[1]}]" if flat.ndim == 3 else f"[{flat.size}]"
    rows = [_wrapped(", ".join(literal(x, dtype) for x in row)) for row in sets.tolist()]
    body = rows[0] if flat.ndim < 3 else ",\n".join(f"    {{\n{row}\n    }}" for row in rows)
    return f"HOG_TABLE hog_real {name}{size} = {{\n{body}\n}};\n"


def _wrapped(numbers: str) -> str:
    return textwrap.fill(
        numbers, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


def defined(**names: object) -> str:
    """Macros."""
    width = max(map(len, names))
    return "".join(f"#define {name:{width}} {value}\n" for name, value in names.items())


def function(name: str, lines: list[str], given: str = "const hog_real *x, hog_real *out") -> str:
    """A function with these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"HOG_INLINE void {name}({given})\n{{\n{body}}}\n"


@dataclass(frozen=True)
class Network:
    """A PICNN in C.

    Attributes:
        name: What its functions and types begin with.
        net: Its parameters, B sets of them.
        dtype: ``"float32"`` or ``"float64"``.
    """

    name: str
    net: PICNNParameters
    dtype: str

    @property
    def widths(self) -> list[int]:
        """Width of every layer; the last is the number of outputs."""
        return [int(w.shape[-2]) for w in self.net.wy]

    @property
    def inputs(self) -> int:
        """Number d of convex inputs."""
        return len(self.net.monotone)

    @property
    def features(self) -> int:
        return int(self.net.feature_weight[0].shape[-1])

    def types(self) -> str:
        """The types for gates, for a forward pass and for sensitivities."""
        hidden = list(enumerate(self.widths[:-1]))
        gates = [f"gy{i}[{self.inputs}], b{i}[{w}]" for i, w in enumerate(self.widths)]
        gates += [f"gz{i + 1}[{w}]" for i, w in hidden]
        tape = [f"a{i}[{w}], s{i}[{w}]" for i, w in hidden] + [f"value[{self.widths[-1]}]"]
        felt = [f"q{i}[{w}]" for i, w in hidden] or ["none[1]"]
        return "\n".join(
            "typedef struct {\n"
            + "".join(f"    hog_real {field};\n" for field in fields)
            + f"}} {self.name}_{kind};\n"
            for kind, fields in (("gates", gates), ("tape", tape), ("sensitivities", felt))
        )

    def code(self) -> str:
        """The tables and the functions."""
        return "\n".join(
            [self._tables(), self._fill(), self._forward(), self._backward(), self._second(), ""]
        )

    def _tables(self) -> str:
        mask, net = np.array(self.net.monotone), self.net
        out = []
        for i, wy in enumerate(net.wy):
            wy = np.where(mask, NUMPY.softplus(wy), wy)
            out.append(table(f"{self.name}_fw{i}", net.feature_weight[i], self.dtype))
            out.append(table(f"{self.name}_fb{i}", net.feature_bias[i][:, None], self.dtype))
            out.append(table(f"{self.name}_wy{i}", wy, self.dtype))
            if i:
                wz = NUMPY.softplus(net.wz[i - 1])
                out.append(table(f"{self.name}_wz{i}", wz, self.dtype))
        return "".join(out)

    def _fill(self) -> str:
        """From features to gates and biases."""
        name, d, widths = self.name, self.inputs, self.widths
        rows = [int(w.shape[-2]) for w in self.net.feature_weight]
        last, first = len(widths) - 1, sum(self.net.monotone)
        assert self.net.monotone == (True,) * first + (False,) * (d - first)
        lines = [f"hog_real out[{max(rows)}];"]
        if last:
            lines.append(f"hog_real u[{max(widths[:-1])}];")
        for i, width in enumerate(widths):
            x, columns = ("u", widths[i - 1]) if i else ("x", self.features)
            before, ahead = widths[i - 1] if i else 0, width if i < last else 0
            lines.append(f"hog_affine({name}_fw{i}[set], {name}_fb{i}[set], {x}, {rows[i]}, "
                         f"{columns}, out);")  # fmt: skip
            at = ahead
            if i:
                lines.append(f"hog_positive(out + {at}, {before}, gates->gz{i});")
                at += before
            if first:
                lines.append(f"hog_positive(out + {at}, {first}, gates->gy{i});")
            if d > first:
                lines.append(f"hog_copy(out + {at + first}, {d - first}, gates->gy{i} + {first});")
            lines.append(f"hog_copy(out + {at + d}, {width}, gates->b{i});")
            if ahead:
                slope = literal(FEATURE_SLOPE, self.dtype)
                lines.append(f"hog_leak(out, {ahead}, {slope}, u);")
        return self._function("fill", f"const hog_real *x, {name}_gates *gates", lines)

    def _forward(self) -> str:
        """The value, with what the derivatives need."""
        name, d, widths = self.name, self.inputs, self.widths
        lines = [f"hog_real v[{max(d, *widths)}];"]
        if len(widths) > 1:
            lines.append(f"hog_real z[{max(widths[:-1])}];")
        for i, width in enumerate(widths):
            hidden = i < len(widths) - 1
            a = f"tape->{f'a{i}' if hidden else 'value'}"
            lines.append(f"hog_gated(gates->gy{i}, y, {d}, v);")
            lines.append(f"hog_affine({name}_wy{i}[set], gates->b{i}, v, {width}, {d}, {a});")
            if i:
                lines.append(f"hog_gated(gates->gz{i}, z, {widths[i - 1]}, v);")
                lines.append(
                    f"hog_add_product({name}_wz{i}[set], v, {width}, {widths[i - 1]}, {a});"
                )
            if hidden:
                lines.append(f"hog_activate({a}, {width}, z, tape->s{i});")
        given = f"const {name}_gates *gates, const hog_real *y, {name}_tape *tape"
        return self._function("forward", given, lines)

    def _backward(self) -> str:
        """The gradient of bar' value, and the sensitivities of the hidden units."""
        name, d, widths = self.name, self.inputs, self.widths
        last = len(widths) - 1
        lines = [f"hog_real v[{max(d, *widths)}];"]
        lines += [f"hog_real bar{i}[{widths[i]}];" for i in range(last)]
        lines += [] if last else ["(void)tape;", "(void)felt;"]
        for i in range(last, -1, -1):
            bar, width = "bar" if i == last else f"bar{i}", widths[i]
            add = "hog_gated" if i == last else "hog_add_gated"
            lines.append(f"hog_transposed({name}_wy{i}[set], {bar}, {width}, {d}, v);")
            lines.append(f"{add}(gates->gy{i}, v, {d}, ybar);")
            if i:
                w, q = widths[i - 1], f"felt->q{i - 1}"
                lines.append(f"hog_transposed({name}_wz{i}[set], {bar}, {width}, {w}, v);")
                lines.append(f"hog_gated(gates->gz{i}, v, {w}, {q});")
                lines.append(f"hog_gated({q}, tape->s{i - 1}, {w}, bar{i - 1});")
        given = (
            f"const {name}_gates *gates, const {name}_tape *tape,\n"
            f"    const hog_real *bar, hog_real *ybar, {name}_sensitivities *felt"
        )
        return self._function("backward", given, lines)

    def _second(self) -> str:
        """The Jacobian, and the curvature of bar' value: that of majorising parabolas."""
        name, d, widths = self.name, self.inputs, self.widths
        last = len(widths) - 1
        lines = [f"hog_real j{i}[{widths[i] * d}];" for i in range(last)]
        lines += [] if last else ["(void)tape;", "(void)felt;"]
        lines.append(f"hog_zero(curved, {d * d});")
        for i, width in enumerate(widths):
            j = f"j{i}" if i < last else "jacobian"
            lines.append(f"hog_direct({name}_wy{i}[set], gates->gy{i}, {width}, {d}, {j});")
            if i:
                lines.append(
                    f"hog_add_chain({name}_wz{i}[set], gates->gz{i}, tape->s{i - 1}, j{i - 1}, "
                    f"{width}, {widths[i - 1]}, {d}, {j});"
                )
            if i < last:
                lines.append(
                    f"hog_add_curvature({j}, felt->q{i}, tape->a{i}, tape->s{i}, {width}, {d}, "
                    f"curved);"
                )
        lines.append(f"hog_mirror({d}, curved);")
        given = (
            f"const {name}_gates *gates, const {name}_tape *tape,\n"
            f"    const {name}_sensitivities *felt, hog_real *jacobian, hog_real *curved"
        )
        return self._function("second", given, lines)

    def _function(self, verb: str, given: str, lines: list[str]) -> str:
        return function(f"{self.name}_{verb}", lines, f"\n    int set, {given}")


def mlp(
    name: str, weights: list[Array], biases: list[Array], width: int, dtype: str, slope: float = 0.1
) -> str:
    """Affine layers with leaky ReLUs between them, as one function; without layers, a copy of
    ``width`` numbers."""
    tables, lines, x = "", [], "x"
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        rows, columns = weight.shape
        tables += table(f"{name}_w{i}", weight, dtype) + table(f"{name}_b{i}", bias, dtype)
        last = i == len(weights) - 1
        y = "out" if last else f"u{i}"
        lines += [] if last else [f"hog_real u{i}[{rows}];"]
        lines.append(f"hog_affine({name}_w{i}, {name}_b{i}, {x}, {rows}, {columns}, {y});")
        lines += [] if last else [f"hog_leak(u{i}, {rows}, {literal(slope, dtype)}, u{i});"]
        x = y
    lines = lines or [f"hog_copy(x, {width}, out);"]
    return f"{tables}\n{function(name, lines)}\n"
