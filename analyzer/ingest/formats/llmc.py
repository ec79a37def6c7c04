"""llm.c: its console (CUDA and PyTorch) and the `main.log` it keeps beside the checkpoints.

    val loss 11.006021
    step    1/21479 | loss 11.007906 (+nanz)| norm 16.3235 (+nanz)| lr 2.86e-06 | 2734.72 ms | 40.3% bf16 MFU | 167751 tok/s
    step    1/50 | train loss 5.238453 | norm 15.3165 | lr 1.00e-04 | (18.51 ms | 13832 tok/s)         train_gpt2.py
    s:0 tel:11.0060                      s:0 trl:11.0079 lr:0.000003 norm:16.32                        main.log

The z-scores in brackets are `nan` for the first 128 steps by design and are left out. A validation line has no step of
its own: it belongs to the step before it. The console counts steps from 1, `main.log` from 0, each as it is written.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_N = rf"-?{NUMBER}"  # C prints a negative NaN as -nan
_STEP = lazy(
    rf"(?:^|\s)step\s+(?P<step>\d{{1,15}})/(?P<total>\d{{1,15}})(?: \||:) (?:train )?loss {{1,8}}(?P<loss>{_N})(?P<rest>.{{0,400}})"
)
_FIELDS = {
    "grad_norm": lazy(rf"\bnorm {{1,8}}(?P<value>{_N})"),
    "lr": lazy(rf"\blr (?P<value>{_N})"),
    "time(ms)": lazy(rf"(?P<value>{NUMBER}) ?ms\b"),
    "mfu(%)": lazy(r"(?P<value>\d{1,3}\.\d)% (?:\w{2,5} )?MFU"),
    "Tokens/sec": lazy(rf"(?P<value>{NUMBER}) tok/s"),
}
_VAL = lazy(rf"\s{{0,4}}val loss (?P<value>{_N})\s*$")
_FILE = lazy(r"\s{0,4}s:(?P<step>\d{1,15}) (?P<rest>(?:tel|trl|eval):.{1,200})$")
_PAIR = lazy(rf"(?P<key>tel|trl|eval|lr|norm): ?(?P<value>{_N})")
_NAMES = {"trl": "loss", "norm": "grad_norm", "lr": "lr"}


def _parse(line: str, log: Log) -> bool:
    found = _STEP.search(line)
    if found:
        if "tok/s" not in line:
            return False
        cells = [("loss", number(found["loss"]))]
        for key, pattern in _FIELDS.items():
            value = pattern.search(found["rest"])
            cells.append((key, number(value["value"]) if value else None))
        log.fact("total_steps", int(found["total"]))
        return _row(int(found["step"]), cells, log)
    found = _VAL.match(line)
    if found:
        return _row(log.step or 0, [("loss", number(found["value"]))], log, axis="eval")
    found = _FILE.match(line)
    if found is None:
        return False
    train, tests = [], []
    for pair in _PAIR.finditer(found["rest"]):
        key, cell = pair["key"], number(pair["value"])
        if key in _NAMES:
            train.append((_NAMES[key], cell))
        else:
            tests.append(("loss" if key == "tel" else "accuracy", cell))
    _row(int(found["step"]), tests, log, axis="eval")
    _row(int(found["step"]), train, log)
    return True


def _row(step: int, cells: list[tuple[str, Cell | None]], log: Log, axis: str | None = None) -> bool:
    known = [(key, cell) for key, cell in cells if cell is not None]
    if known:
        log.fact("framework", "llm.c")
        log.row(step, known, LINE.name, axis=axis)
    return bool(known)


LINE = LineFormat("llmc-console", ("tok/s", "val loss ", " tel:", " trl:", " eval:"), _parse, order=43)
