"""Arrays by name, each in memory only while it is used, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from pipelines.models.architecture import Shapes

_TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(type_)
    for name, type_ in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
        "BOOL": "?",
    }.items()
}
_NAMES = {type_: name for name, type_ in _TYPES.items()}
"""numpy's types by safetensors' names, and the inverse."""
_ALIGNMENT = 8
"""The library pads a header with blanks to a multiple of it, in bytes."""
_METADATA = {"format": "pt"}
"""Without it transformers refuses a file."""


class LazyArrays(Mapping[str, np.ndarray]):
    """fp32 arrays, each made on request and not kept; their shapes are known beforehand."""

    def __init__(self, shapes: Shapes, make: Callable[[str], np.ndarray]) -> None:
        self.shapes = shapes
        self._make = make

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def shapes_of(arrays: Mapping[str, np.ndarray]) -> Shapes:
    """Return the shapes of arrays, without making any."""
    if isinstance(arrays, LazyArrays):
        return arrays.shapes
    return {name: array.shape for name, array in arrays.items()}


class _Place(NamedTuple):
    """An array's place in a file."""

    offset: int
    type_: np.dtype[Any]
    shape: tuple[int, ...]


def stored_arrays(path: Path) -> LazyArrays:
    """Return the arrays of a safetensors file, each mapped into memory on request.

    Only the parts in use are read, and freed with the array. The file has to stay in place.

    Raises:
        SafetensorError: It is damaged.
    """
    with safe_open(str(path), framework="numpy"):
        pass  # The library has compared the header with the size of the file.
    places = _places(path)

    def read(name: str) -> np.ndarray:
        place = places[name]
        if 0 in place.shape:
            return np.empty(place.shape, place.type_)
        # Copy on write: changes to an array stay in memory, and the file keeps its content.
        mapped = np.memmap(path, place.type_, "c", place.offset, place.shape)
        return mapped.view(np.ndarray)

    return LazyArrays({name: place.shape for name, place in places.items()}, read)


def _places(path: Path) -> dict[str, _Place]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {
        name: _Place(
            8 + size + entry["data_offsets"][0], _TYPES[entry["dtype"]], tuple(entry["shape"])
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def stored_order(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of arrays in the order of a file: wide types first, then by name."""
    if isinstance(arrays, LazyArrays):
        return sorted(arrays.shapes)
    return sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file as the library does, with one array in memory at a time."""
    names, shapes = stored_order(arrays), shapes_of(arrays)
    header: dict[str, Any] = {"__metadata__": _METADATA}
    offset = 0
    for name in names:
        kind = _type(arrays, name)
        end = offset + int(np.prod(shapes[name], dtype=np.int64)) * kind.itemsize
        header[name] = {
            "dtype": _NAMES[kind],
            "shape": list(shapes[name]),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            # In the order of C, whatever the order in memory is.
            array = np.ascontiguousarray(arrays[name], _type(arrays, name))
            if array.size != np.prod(shapes[name], dtype=np.int64):
                raise ValueError(f"{name} is {list(array.shape)}, not {list(shapes[name])}")
            file.write(array.reshape(-1).view(np.uint8).data)


def _type(arrays: Mapping[str, np.ndarray], name: str) -> np.dtype[Any]:
    if isinstance(arrays, LazyArrays):
        return _TYPES["F32"]
    kind: np.dtype[Any] = arrays[name].dtype
    return kind.newbyteorder("<")
