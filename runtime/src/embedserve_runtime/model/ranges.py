"""The range of each dimension of a model's vectors, measured on a sample of texts: what int8 without scales needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.files import FileModel, ModelFiles

RANGES_FILE = "quantization_ranges.json"


@dataclass(frozen=True, slots=True)
class Ranges:
    """The least and the largest number of each dimension."""

    minimum: tuple[float, ...]
    maximum: tuple[float, ...]

    def find_fault(self, dimensions: int) -> str | None:
        """Find what is wrong with the ranges for vectors of that many dimensions."""
        if len(self.minimum) != dimensions or len(self.maximum) != dimensions:
            return f"has {len(self.minimum)} and {len(self.maximum)} numbers, the vectors have {dimensions} dimensions"
        if not all(map(isfinite, (*self.minimum, *self.maximum))):
            return "has a number that is not finite"
        wrong = next((i for i in range(dimensions) if self.minimum[i] > self.maximum[i]), None)
        return None if wrong is None else f"dimension {wrong}: the least number is larger than the largest"


class _RangesFile(FileModel):
    min: tuple[float, ...]
    max: tuple[float, ...]


def read_ranges(files: ModelFiles, dimensions: int) -> Ranges | None:
    """Read the ranges from the folder's file; None without one. Raises ModelInvalid."""
    file = files.find(RANGES_FILE)
    if file is None:
        return None
    content = file.parse(_RangesFile)
    ranges = Ranges(content.min, content.max)
    if fault := ranges.find_fault(dimensions):
        raise ModelInvalid(f"{file.path}: {fault}")
    return ranges
