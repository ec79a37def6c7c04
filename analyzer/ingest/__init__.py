"""Reads whatever a run left behind into traces: finds the files, decides each one's format by content, joins them.

`read(paths)` is the entry: one trace a run; `read_run` reads one run whose files the caller has found. A folder is one
run; a folder without metric files of its own whose sub-folders hold some is several runs, one each. Files of one run
may differ in format and rank.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.ingest import facts
from faultproxy.analyzer.ingest import formats as _formats
from faultproxy.analyzer.ingest.facts.neighbours import is_setting
from faultproxy.analyzer.ingest.interface import FileFormat, LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.merge import merge
from faultproxy.analyzer.ingest.source import File, natural, walk
from faultproxy.analyzer.ingest.text import read_text
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Source, Trace

if TYPE_CHECKING:
    from faultproxy.analyzer.ingest.facts.found import Found

__all__ = ["Run", "read", "read_file", "read_run"]

#: Suffixes of files a folder may hold that are never a trace; skipped without a word.
NOT_TRACES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npy", ".npz", ".so", ".py", ".pyc", ".png", ".pdf", ".svg", ".md", ".yaml", ".yml", ".sh", ".model", ".toml", ".lock", ".cfg", ".ini", ".html", ".arrow", ".gif", ".jpg", ".ipynb", ".whl", ".zip", ".tar"}  # fmt: skip
#: Files beside a checkpoint, a data set, or a set of labelled logs that carry no metrics.
NOT_METRICS = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "vocab.json", "added_tokens.json", "model.safetensors.index.json", "preprocessor_config.json", "all_results.json", "train_results.json", "eval_results.json", "adapter_config.json", "args.json", "ds_config.json", "labels.jsonl", "merges.txt", "requirements.txt"}  # fmt: skip
#: Sub-folders that belong to the run of the folder that holds them. A bare number of four digits or more is a job's, not a
#: rank's: a folder of jobs must not become one run.
PARTS = lazy(
    r"^(?:checkpoint|ckpt|global_step|iter|rank|node|worker|logs?|tb|tensorboard|output|metrics|attempt|restart|stdout|stderr|torchelastic|default)[_.-]?\d*$|^[_.-]?\d{1,3}$|^none_\w+$",
    re.IGNORECASE,
)
#: torchrun's own layout: `attempt_0/3/stderr.log` is rank 3.
_RANK = lazy(r"(?:(?:^|[_.\-/])rank[_\-]?|attempt_\d+/)(\d{1,6})(?=[_.\-/]|$)", re.IGNORECASE)
#: Lines of an unknown text in which the last-resort reader must find its first row.
PATIENCE = 500_000
#: A folder with more candidate files than this is sampled in name order, and the report says so.
MAX_FILES = 4096


@cache
def _known() -> tuple[list[FileFormat], list[LineFormat]]:
    files: list[FileFormat] = []
    lines: list[LineFormat] = []
    for module in pkgutil.iter_modules(_formats.__path__):
        loaded = importlib.import_module(f"{_formats.__name__}.{module.name}")
        files += [loaded.FILE] if hasattr(loaded, "FILE") else []
        lines += [loaded.LINE] if hasattr(loaded, "LINE") else []
    return sorted(files, key=lambda f: f.order), sorted(lines, key=lambda f: f.order)


class Run(NamedTuple):
    """The files of one run and the folder it lies in (None: stdin); `alone` when one file was pointed at."""

    name: str
    files: list[File]
    folder: Path | None
    alone: bool = False


def read(paths: list[str], model_config: str | None = None) -> list[Trace]:
    """Read every run that `paths` (files, folders, `-` for stdin) hold; several files given by name are runs of their own.

    `model_config` is a `config.json` that describes the model of all of them. Raises InputError when nothing at all could
    be read, or that is none; otherwise what could not be read is named in the traces' warnings.
    """
    traces: list[Trace] = []
    problems: list[str] = []
    shape = facts.given(model_config) if model_config is not None else {}
    for name in paths:
        try:
            runs = _runs(name) if name != "-" else [Run("stdin", [File(Path("stdin"), sys.stdin.buffer.read())], None)]
        except InputError as error:
            problems.append(str(error))
            continue
        for run in runs:
            try:
                traces.append(read_run(run, shape))
            except InputError as error:
                problems.append(str(error))
    if not traces:
        raise InputError("\n".join(problems) if problems else "nothing to read: no path was given")
    traces[0].warnings += problems
    return traces


def _runs(name: str) -> list[Run]:
    if not name:  # for Path it is the current folder
        raise UnreadableError("no path: a TRACE is empty; give a file, a folder, or - for stdin")
    path = Path(name)
    try:
        if not path.exists():
            raise UnreadableError(f"{path}: no such file or folder")
    except (OSError, ValueError) as error:  # a folder above without rights, a name longer than the system allows
        raise UnreadableError(f"{path}: cannot be reached ({error}); check the path and its rights") from error
    if path.is_file():
        return [Run(path.name, [File(path)], path.parent, alone=True)]
    if not path.is_dir():
        raise UnreadableError(f"{path}: neither a file nor a folder")
    if (path / "values.parquet").is_file():
        return [Run(path.name, [File(path / "values.parquet")], path)]
    own: list[Path] = []
    groups: dict[str, list[Path]] = {}
    for found in walk(path):
        if found.suffix.lower() in NOT_TRACES or found.name in NOT_METRICS:
            continue
        if found.name != "values.parquet" and (found.parent / "values.parquet").is_file():
            continue  # a part of the canonical trace that values.parquet stands for
        inside = found.relative_to(path).parts
        if len(inside) == 1 or PARTS.match(inside[0]):
            own.append(found)
        else:
            groups.setdefault(inside[0], []).append(found)
    if own and not groups:
        return [Run(path.name, [File(file) for file in own], path)]
    if not own and not groups:
        raise UnreadableError(
            f"{path}: the folder holds no file that could be a trace (looked for logs, JSON, CSV, Parquet)"
        )
    runs = [Run(path.name, [File(file) for file in own], path)] if own else []
    return runs + [
        Run(f"{path.name}/{name}", [File(file) for file in files], path / name)
        for name, files in sorted(groups.items(), key=lambda g: natural(g[0]))
    ]


def read_run(run: Run, shape: facts.Given) -> Trace:
    """Read the files of one run into a trace; raises UnreadableError when none of them holds a row or an event."""
    name, files = run.name, run.files
    logs: list[Log] = []
    texts: list[File] = []
    problems: list[str] = []
    for file in files[:MAX_FILES]:
        try:
            log = read_file(file, len(logs))
        except InputError as error:
            problems.append(str(error))
            continue
        except OSError as error:  # it went away while it was read
            problems.append(f"{file.path}: cannot be read ({error.strerror or error})")
            continue
        if not log.native:
            texts.append(file)
        if log.source.rows or log.events:
            logs.append(log)
        elif not is_setting(file.name):
            problems.append(f"{file.path}: no metric row and no known event in it")
    for log, number in zip(logs, _numbers([log.source.path for log in logs]), strict=True):
        log.number = number
    if len(files) > MAX_FILES:
        problems.append(f"{name}: {len(files)} files; the first {MAX_FILES} in name order were read")
    if not logs:
        problems = problems or [f"{name}: settings, no trace; they are read with the log that lies beside them"]
        hint = "it reads the logs of RL and pre-training frameworks, tables, JSON, Parquet, and lines of `name: value`, `name=value`, or `name value` pairs that come back with other numbers"
        raise UnreadableError("\n".join(problems) + f"\n{hint}; see docs/formats.md")
    trace = merge(name, logs, _facts(run, logs, texts, shape))
    trace.warnings += problems
    return trace


def _facts(run: Run, logs: list[Log], texts: list[File], shape: facts.Given) -> Found | None:
    """What is known of a run beside its metrics. A canonical trace brings its own facts: what lies beside it is not its."""
    canonical = any(log.source.format.startswith("canonical") for log in logs)
    folder = None if canonical else run.folder
    return facts.gather(folder, [file.path for file in run.files], texts, run.alone, shape)


def _numbers(paths: list[str]) -> list[int | None]:
    """The number in which paths differ that are alike otherwise (`node-0/out.log`, `node-1/out.log`), else None."""
    parts = [re.split(r"(\d{1,9})", path) for path in paths]
    found: list[int | None] = []
    for own in parts:
        alike = [other for other in parts if other[::2] == own[::2]]
        varying = [i for i in range(1, len(own), 2) if len({other[i] for other in alike}) > 1]
        found.append(int(own[varying[-1]]) if varying else None)
    return found


def read_file(file: File, index: int) -> Log:
    """Read one file into a log; raises UnreadableError when it is empty, foreign, or cannot be opened."""
    head = file.head()
    rank = _RANK.search(str(file.path))
    source = Source(str(file.path), "text", file.sha256())
    file_formats, line_formats = _known()
    for format in file_formats:
        if format.sniff(head, file):
            log = Log(index, source, int(rank[1]) if rank else None)
            source.format = format.name
            try:
                format.read(file, log)
            except UnreadableError:
                break
            source.truncated = file.truncated or source.truncated
            if source.rows or log.events:
                log.native = bool(source.rows)
                return log
            break
    log = _text(file, index, source, rank, [f for f in line_formats if not f.last_resort])
    if not source.rows:
        again = _text(file, index, Source(source.path, "text", source.sha256), rank, line_formats, PATIENCE)
        if again.source.rows:
            return again
    return log


def _text(
    file: File,
    index: int,
    source: Source,
    rank: re.Match[str] | None,
    formats: list[LineFormat],
    patience: int | None = None,
) -> Log:
    source.rows = source.unparsed = 0
    log = Log(index, source, int(rank[1]) if rank else None)
    file.truncated = False
    read_text(file, log, formats, patience)
    source.truncated = source.truncated or file.truncated
    return log
