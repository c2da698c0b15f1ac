"""The table of listening sockets in `docs/reference/sockets.md`, as the tests read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.settings import TrainingSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sockets.md"
EVERY_ENGINE = "every engine"
SOME = "some"
COLUMNS = 6


@dataclass(frozen=True)
class SocketRow:
    """A row.

    Attributes:
        runs: Which runs have the socket: an engine, one with a mode or with a framework, or one
            whose workers hold the encoder together.
        process: Whose it is; see :data:`host_sockets.ROLES`.
        reach: Where it listens; see :class:`host_sockets.Listener`.
        number: The most that an executor has at once, or else a host; None where that differs.
    """

    runs: tuple[str, ...]
    process: str
    reach: str
    number: int | None

    def holds(self, training: TrainingSettings) -> bool:
        """Whether a run with these settings has the socket."""
        engine = training.engine
        is_for = {engine, f"{engine} {training.mode}", f"{engine} with {training.framework}"}
        if training.placement.is_divided:
            is_for.add(f"{engine} divided")
        return not is_for.isdisjoint(self.runs) or EVERY_ENGINE in self.runs


def socket_rows() -> Iterator[SocketRow]:
    """All rows."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != COLUMNS or cells[0] == "run" or set(cells[0]) == {"-"}:
            continue
        runs, process, reach, number, _, _ = cells
        names = tuple(name.replace("`", "").strip() for name in runs.split(","))
        yield SocketRow(names, process, reach, None if number == SOME else int(number))
