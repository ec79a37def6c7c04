"""What the tests of the hook share: a job that failed, the hook as a command, and children that end as told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.hook import outputs, supervise
from faultproxy.analyzer.hook import run as module
from faultproxy.analyzer.hook.request import Request

LOG = "".join(
    f"step:{n} - actor/pg_loss:{'nan' if n > 40 else 0.1} - actor/grad_norm:1.{n % 10}\n" for n in range(1, 61)
)
FILES = {outputs.REPORT, *outputs.VIEWS}
CODE = "import sys; from faultproxy.analyzer.cli import script; sys.argv[0] = 'faultproxy'; script()"


def failed_job(folder: Path) -> Path:
    """A job's folder with the log of a run that fails at step 41."""
    folder.mkdir()
    (folder / "run.log").write_text(LOG)
    return folder


def signals_kept() -> Iterator[None]:
    """What a fixture yields from: handlers that the hook sets are gone after it."""
    held = {number: signal.getsignal(number) for number in module._SIGNALS}
    yield
    for number, handler in held.items():
        signal.signal(number, handler)


def ask(job: Path, **options: Any) -> Request:
    return Request(str(job), **options)


def command(*options: str) -> list[str]:
    return [sys.executable, "-c", CODE, "hook", "run", *options]


def call(*options: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*options), capture_output=True, text=True, check=False, timeout=100, **how)


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "diagnosis.json").read_text())
    return found


def fake(monkeypatch: pytest.MonkeyPatch, **ended: Any) -> list[Request]:
    """Children that end as told; what they were asked comes back."""
    asked: list[Request] = []

    def supervised(kind: str, request: Request, *_: Any) -> supervise.Ended:
        asked.append(request)
        return supervise.Ended(**ended) if kind == "analysis" else supervise.Ended()

    monkeypatch.setattr(module, "supervise", supervised)
    return asked
