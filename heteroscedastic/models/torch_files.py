"""Reads state dicts of PyTorch without PyTorch, and without running what a file says.

A file of `torch.save` before PyTorch 1.6 is five pickles and the numbers. A pickle is a program and
may call any function. It is therefore not unpickled: its instructions are read one by one, and the
few that a state dict needs are followed here. Every other instruction or name is an error.
"""

import os
import pickletools
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DTYPES = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_MARK = object()
_FAULTS = (ValueError, AttributeError, IndexError, KeyError, TypeError)


class _Name(NamedTuple):
    text: str


class _Storage(NamedTuple):
    dtype: np.dtype
    key: str
    size: int  # numbers


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # numbers


def read_state_dict(path: str | os.PathLike) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of a state dict by name.

    Args:
      path: file that `torch.save(model.state_dict(), path)` of PyTorch before 1.6 wrote, with
        tensors of float32 and int64.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is of another kind, is truncated, or asks for another function.
    """
    with open(path, "rb") as file:
        try:
            if (_value(file), _value(file)) != (_MAGIC, _PROTOCOL):
                raise ValueError("it does not start as a file of torch.save before PyTorch 1.6")
            if _value(file).get("little_endian") is not True:
                raise ValueError("its numbers are not little-endian")
            tensors, keys = _value(file), _value(file)
            storages = _storages(tensors.values())
            numbers = {key: _numbers(file, storages[key]) for key in keys}
            return {name: _array(tensor, numbers) for name, tensor in tensors.items()}
        # A damaged length may exceed the memory.
        except (*_FAULTS, MemoryError, OverflowError) as error:
            raise ValueError(
                f"{os.fspath(path)} is not a state dict that can be read"
                f" ({str(error) or 'a length in it is too large'}); save the state dict as an .npz"
                ' file with PyTorch: np.savez("FILE.npz",'
                " **{k: v.numpy() for k, v in model.state_dict().items()})."
            ) from None


def _storages(tensors: Iterable[_Tensor]) -> dict[str, _Storage]:
    """The storages by key, of the size that the bounds of each tensor were checked against."""
    storages: dict[str, _Storage] = {}
    for tensor in tensors:
        if storages.setdefault(tensor.storage.key, tensor.storage) != tensor.storage:
            raise ValueError(f"its storage {tensor.storage.key} has two sizes or types")
    return storages


def _numbers(file: IO[bytes], storage: _Storage) -> np.ndarray:
    size = int.from_bytes(file.read(8), "little")
    content = file.read(size * storage.dtype.itemsize)
    if size != storage.size or len(content) != size * storage.dtype.itemsize:
        raise ValueError("it is truncated")
    return np.frombuffer(content, storage.dtype)


def _array(tensor: _Tensor, numbers: dict[str, np.ndarray]) -> np.ndarray:
    values = numbers[tensor.storage.key][tensor.offset :]
    strides = [stride * values.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(values, tensor.shape, strides).copy()


def _value(file: IO[bytes]) -> Any:
    """The value of one pickle, made of dictionaries, lists, tuples, numbers and tensors."""
    stack, memo = [], {}
    for code, argument in _instructions(file):
        if code in ("PROTO", "STOP"):
            continue
        if code in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"):
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if code == "EMPTY_DICT" else [])
        elif code in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif code in ("TUPLE1", "TUPLE2", "TUPLE3"):
            length = int(code[-1])
            stack[-length:] = [tuple(stack[-length:])]
        elif code == "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        elif code == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif code == "APPENDS":
            values = _since_mark(stack)
            stack[-1].extend(values)
        elif code == "SETITEM":
            key, value = stack.pop(-2), stack.pop()
            stack[-1][key] = value
        elif code == "SETITEMS":
            values = _since_mark(stack)
            stack[-1].update(zip(values[::2], values[1::2]))
        elif code == "GLOBAL":
            if argument not in (_DICT, _TENSOR, *_DTYPES):
                raise ValueError(f"it asks for {argument.replace(' ', '.')}, which is not admitted")
            stack.append(_Name(argument))
        elif code == "BINPERSID":
            _, name, key, _, size, _ = stack.pop()
            stack.append(_Storage(_DTYPES[name.text], key, size))
        elif code == "REDUCE":
            arguments, name = stack.pop(), stack.pop()
            stack.append({} if name.text == _DICT else _tensor(*arguments))
        elif code == "BUILD":  # attributes of the dictionary, which hold no weights
            stack.pop()
        else:
            raise ValueError(f"it has the instruction {code}, which no state dict needs")
    (value,) = stack
    return value


_CONSTANTS = {
    "MARK": _MARK,
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}


def _instructions(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    for opcode, argument, _ in pickletools.genops(file):
        yield opcode.name, argument


def _since_mark(stack: list[Any]) -> list[Any]:
    """Takes the values above the last mark, and the mark, from the stack."""
    start = max(i for i, value in enumerate(stack) if value is _MARK)
    values = stack[start + 1 :]
    del stack[start:]
    return values


def _tensor(
    storage: _Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: dict,
) -> _Tensor:
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides))
    is_inside = min((offset, *strides), default=0) >= 0 and last < storage.size
    if len(shape) != len(strides) or min(shape, default=1) < 1 or not is_inside:
        raise ValueError(f"it has a tensor of shape {shape} outside of its {storage.size} numbers")
    return _Tensor(storage, offset, shape, strides)
