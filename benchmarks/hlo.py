"""Communication between devices and estimated cycles of a compiled program, from its HLO text.

The body of a loop counts as often as the loop runs it, if the number of iterations is a constant in
its condition; `cost_analysis` of JAX counts it once.
"""

import math
import re
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([0-9,]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONSTANT = re.compile(r"^(\d+)\)")
_CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16}


class Instruction(NamedTuple):
    """One line of HLO text."""

    shape: str
    opcode: str
    rest: str  # operands and attributes


class CollectiveOutput(NamedTuple):
    """An output array of a collective operation on one device."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    times: int  # executions per step
    in_loop: bool


class Crossing(NamedTuple):
    """The outputs of all collective operations of one kind in a step, on one device."""

    count: int  # output arrays
    bytes: int
    largest: tuple[int, ...]  # shape of the largest output array
    in_loops: int  # bytes of outputs in the bodies of loops


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of a compiled program by name, and the name of its entry computation."""
    by_name: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = by_name.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (
            match := _INSTRUCTION.match(re.sub(r"/\*index=\d+\*/", "", line))
        ):
            current.append(Instruction(match[2], match[3], match[4]))
    return by_name, entry


def executions(text: str, into_fusions: bool) -> list[tuple[Instruction, int, bool]]:
    """Every instruction, its number of executions per step, and whether it is in a loop.

    Args:
      text: HLO text of the compiled program.
      into_fusions: also lists the instructions inside fused operations.
    """
    by_name, entry = computations(text)
    instructions = []

    def visit(name, number, in_loop):
        for one in by_name.get(name, ()):
            instructions.append((one, number, in_loop))
            if one.opcode == "while":
                condition = re.search(r"condition=%?([\w.\-]+)", one.rest)[1]
                inner = number * trip_count(by_name, condition)
                visit(re.search(r"body=%?([\w.\-]+)", one.rest)[1], inner, True)
            elif one.opcode in ("call", "async-start", "conditional") or (
                into_fusions and one.opcode == "fusion"
            ):
                branches = _BRANCHES.findall(one.rest)
                names = (
                    re.findall(r"[\w.\-]+", branches[0]) if branches else _CALLED.findall(one.rest)
                )
                for called in names:
                    visit(called, number, in_loop)

    visit(entry, 1, False)
    return instructions


def trip_count(by_name: dict[str, list[Instruction]], condition: str) -> int:
    """The number of iterations of a loop: the constant with which its condition compares.

    Returns:
      1 if the condition has no constant, as where the end of the loop depends on data.
    """
    limits = [
        int(n[1])
        for one in by_name[condition]
        if one.opcode == "constant" and (n := _CONSTANT.match(one.rest))
    ]
    return max(limits, default=1)


def collective_outputs(text: str) -> list[CollectiveOutput]:
    """The outputs of all collective operations; of an asynchronous one, the output of its end."""
    return [
        CollectiveOutput(
            one.opcode.removesuffix("-done"),
            dtype,
            tuple(int(n) for n in dims.split(",") if n),
            number,
            in_loop,
        )
        for one, number, in_loop in executions(text, into_fusions=True)
        if one.opcode.removesuffix("-done") in COLLECTIVES
        for dtype, dims in _ARRAY.findall(one.shape)
    ]


def crossings(text: str) -> dict[str, Crossing]:
    """The collective operations of a step by kind."""
    outputs = collective_outputs(text)
    by_kind = {}
    for kind in sorted({x.kind for x in outputs}):
        same = [x for x in outputs if x.kind == kind]
        sizes = [x.times * math.prod(x.shape) * _bits(x.dtype) // 8 for x in same]
        largest = max((x.shape for x in same), key=math.prod)
        in_loops = sum(size for size, x in zip(sizes, same) if x.in_loop)
        by_kind[kind] = Crossing(sum(x.times for x in same), sum(sizes), largest, in_loops)
    return by_kind


class Cycles(NamedTuple):
    """The TPU compiler's estimate of the cycles of a step, if operations run sequentially."""

    all: int
    in_loops: int  # part of `all`


def cycles(text: str) -> Cycles:
    """The estimated cycles of a step; collective operations have no estimate."""
    expected = [
        (number * int(match[1]), in_loop)
        for one, number, in_loop in executions(text, into_fusions=False)
        if (match := _CYCLES.search(one.rest))
    ]
    return Cycles(sum(n for n, _ in expected), sum(n for n, in_loop in expected if in_loop))


def _bits(dtype: str) -> int:
    return _BITS.get(dtype) or int(re.search(r"\d+", dtype)[0])
