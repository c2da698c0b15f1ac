"""What a comparison has measured so far, kept line by line, so that it can be interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.benchmarks.strategies.trial import Reading, reading_of
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.line_log import LineLog

READINGS, COMPARED = "readings.jsonl", "comparison.json"


class Record:
    """The readings of a folder.

    Args:
        folder: Of the comparison; made if it is not there.
        compared: What all its readings have in common.

    Raises:
        InputError: The folder has readings of something else.
    """

    def __init__(self, folder: Path, compared: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / READINGS
        known = folder / COMPARED
        wanted = json.loads(json.dumps(compared))
        if known.is_file():
            found = records.read(known, dict[str, Any])
            other = [key for key in wanted if found.get(key) != wanted[key]]
            if other:
                raise InputError(
                    "--output",
                    f"{folder} holds a comparison with another {', '.join(other)}",
                    "name another folder, or remove it",
                )
        storage.write_json(known, wanted)
        self._lines = LineLog(self._path)
        # What was killed while it wrote has left half a line.
        self._lines.keep(
            lambda line: records.read_line(self._path, line.encode(), dict, torn=True) is not None
        )

    def __iter__(self) -> Iterator[Reading]:
        return map(reading_of, records.read_lines(self._path, dict[str, Any], torn=True))

    def add(self, reading: Reading) -> None:
        """Keeps a reading at once."""
        self._lines.add(json.dumps(reading.as_json()))
