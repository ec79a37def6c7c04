"""Does every fault of the lab do what faults.toml says? `python benchmarks/injectors.py [CORPUS]`.

At the strongest severity, for each cell (program, onset) of the corpus: the z of a signal is the median over the cell's
seeds. A named signal counts as moved when it moved by 3 spreads in the named direction, a clean one as clean when it did
not move by 3 either way; a signal the program does not log counts neither way. Benign twins are in it too.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from faultproxy.proxy.lab import store
from faultproxy.proxy.lab.effect import EFFECT, moved
from faultproxy.proxy.run.config import FaultSpec
from faultproxy.proxy.run.inject import faults

CORPUS = Path(__file__).resolve().parent.parent / "fixtures" / "corpus"


def cells(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Median effects of each cell at the strongest severity, by fault."""
    by_cell: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if row["fault"] and row["severity"] == 2 and row["error"] is None:
            by_cell[row["fault"], row["cell"]].append(row["effect"])
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for (fault, _), effects in by_cell.items():
        names = set.intersection(*(set(effect) for effect in effects))
        found[fault].append({name: statistics.median(effect[name] for effect in effects) for name in names})
    return found


def line(fault: FaultSpec, measured: list[dict[str, float]]) -> tuple[str, bool, bool, bool]:
    """The fault's row; does every named signal move in most cells, any of them in every cell, and is all clean."""
    parts, all_move, unclean = [], True, []
    for signal, direction in fault.moves.items():
        shown = [cell for cell in measured if signal in cell]
        n = sum(moved(cell, signal, direction) for cell in shown)
        parts.append(f"{signal}{direction} {n}/{len(shown)}")
        all_move = all_move and n > len(shown) / 2
    some_move = all(any(moved(cell, signal, way) for signal, way in fault.moves.items()) for cell in measured)
    for signal in fault.clean:
        shown = [cell for cell in measured if signal in cell]
        n = sum(abs(cell[signal]) >= EFFECT for cell in shown)
        if n:
            unclean.append(f"{signal} {n}/{len(shown)}")
    text = f"{fault.name:30} {fault.factor:9} {fault.cause:14} {'; '.join(parts)}"
    return text + (f"   NOT CLEAN {'; '.join(unclean)}" if unclean else ""), all_move, some_move, not unclean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=Path, default=CORPUS)
    options = parser.parse_args()
    measured = cells(store.manifest(options.corpus))
    lines = [(fault, *line(fault, measured[fault.name])) for fault in faults() if measured[fault.name]]
    for _, text, every, some, clean in lines:
        print(f"{'ok' if every and clean else 'move' if some else 'weak':5}{text}")
    injected = [entry for entry in lines if entry[0].kind == "fault"]
    alike = [entry for entry in injected if entry[0].clean]
    print(f"\n{len(injected)} faults: every named signal moves in most cells {sum(e[2] for e in injected)}, ", end="")
    print(f"some named signal in every cell {sum(e[3] for e in injected)}")
    print(f"{len(alike)} faults with signals that must stay clean: all clean in every cell {sum(e[4] for e in alike)}")


if __name__ == "__main__":
    main()
