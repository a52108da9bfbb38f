"""What a compiled program does, read off its text: what crosses between devices, and the compiler's
own cycles.

A loop's body counts as often as the loop runs it, where its condition tells; `cost_analysis` of
JAX counts it once.
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
    shape: str
    opcode: str
    rest: str  # operands and attributes


class Array(NamedTuple):
    """One that a collective operation puts out on a device."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    times: int  # a step
    in_loop: bool


class Crossing(NamedTuple):
    """Collective operations of one kind in a step, on each device."""

    count: int  # of arrays
    bytes: int  # of what comes out of them
    largest: tuple[int, ...]  # shape
    in_loops: int  # bytes, of those in the bodies of loops


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of a compiled program by name, and the name of the first to run."""
    found: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = found.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (
            one := _INSTRUCTION.match(re.sub(r"/\*index=\d+\*/", "", line))
        ):
            current.append(Instruction(one[2], one[3], one[4]))
    return found, entry


def times(text: str, into_fusions: bool) -> list[tuple[Instruction, int, bool]]:
    """Every instruction that runs, how often in a step, and whether a loop runs it.

    Args:
      text: of the compiled program.
      into_fusions: whether the parts of a fused operation are instructions of their own.
    """
    found, entry = computations(text)
    told = []

    def visit(name, number, in_loop):
        for one in found.get(name, ()):
            told.append((one, number, in_loop))
            if one.opcode == "while":
                inner = number * trip_count(
                    found, re.search(r"condition=%?([\w.\-]+)", one.rest)[1]
                )
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
    return told


def trip_count(found: dict[str, list[Instruction]], condition: str) -> int:
    """How often a loop runs: the constant that its counter is compared with; 1 where there is
    none.
    """
    limits = [
        int(n[1])
        for one in found[condition]
        if one.opcode == "constant" and (n := _CONSTANT.match(one.rest))
    ]
    return max(limits, default=1)


def crossing(text: str) -> list[Array]:
    """What collective operations put out on a device; of one that starts and ends apart, at its
    end.
    """
    return [
        Array(
            one.opcode.removesuffix("-done"),
            of,
            tuple(int(n) for n in dims.split(",") if n),
            number,
            in_loop,
        )
        for one, number, in_loop in times(text, into_fusions=True)
        if one.opcode.removesuffix("-done") in COLLECTIVES
        for of, dims in _ARRAY.findall(one.shape)
    ]


def crossings(text: str) -> dict[str, Crossing]:
    """By kind, the collective operations of a step."""
    arrays = crossing(text)
    told = {}
    for kind in sorted({x.kind for x in arrays}):
        of = [x for x in arrays if x.kind == kind]
        sizes = [x.times * math.prod(x.shape) * _bits(x.dtype) // 8 for x in of]
        largest = max((x.shape for x in of), key=math.prod)
        looped = sum(size for size, x in zip(sizes, of) if x.in_loop)
        told[kind] = Crossing(sum(x.times for x in of), sum(sizes), largest, looped)
    return told


class Cycles(NamedTuple):
    """That the compiler of a TPU expects of a step, its operations one after the other."""

    all: int
    in_loops: int  # of them


def cycles(text: str) -> Cycles:
    """The cycles of a step; what crosses between devices has none."""
    expected = [
        (number * int(found[1]), in_loop)
        for one, number, in_loop in times(text, into_fusions=False)
        if (found := _CYCLES.search(one.rest))
    ]
    return Cycles(sum(n for n, _ in expected), sum(n for n, in_loop in expected if in_loop))


def _bits(dtype: str) -> int:
    return _BITS.get(dtype) or int(re.search(r"\d+", dtype)[0])
