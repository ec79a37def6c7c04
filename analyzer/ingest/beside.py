"""Values of layers and experts that a side format tells: they lie beside the run's rows and make none of their own.

A row of their own would say that the run logged a step there, and would keep the last-resort reader from a log whose
metric lines nobody else knows.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.trace import Cell


def beside(log: Log, step: int, cells: list[tuple[str, Cell]], format: str) -> None:
    """Put values beside the rows of `step`. They are the layer's, whichever rank tells them."""
    if cells:
        log.formats[format] = log.formats.get(format, 0) + 1
        log.rank = None
        log.detail_row(step, cells)


def alone(log: Log) -> None:
    """Keep a log that tells nothing else: its values would be lost with it."""
    if not log.source.rows and not log.events and log.detail.columns:
        log.event("layer_values", "values of layers, and no metric row")
