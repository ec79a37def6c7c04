"""What the writers share: a run as rows, the steps that one logged row stands for, and how a time is printed."""

from __future__ import annotations

from collections.abc import Iterator

Row = dict[str, float]
Run = list[Row]


def windows(run: Run, interval: int) -> Iterator[Run]:
    """The steps each logged row stands for."""
    window: Run = []
    for row in run:
        window.append(row)
        if int(row["step"]) % interval == 0:
            yield window
            window = []


def clock(seconds: float, start: int = 10 * 3600) -> str:
    """`2026-08-01 10:00:00` and onwards; a run of more than a day runs into the next days."""
    total = start + int(seconds)
    return f"2026-08-{1 + total // 86400:02d} {total // 3600 % 24:02d}:{total // 60 % 60:02d}:{total % 60:02d}"


def span(seconds: float) -> str:
    """tqdm's `[H:]MM:SS`."""
    whole = int(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole // 60 % 60:02d}:{whole % 60:02d}"


def words(seconds: float) -> str:
    """ms-swift's `7h 1m 2s`."""
    whole = int(seconds)
    parts = [(whole // 3600, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    return " ".join(f"{n}{unit}" for n, unit in parts if n) or "0s"
