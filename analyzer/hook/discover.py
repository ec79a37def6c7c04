"""Finds what a job left in its folder: logs and tracker files by run, the model's configuration, and what is left out.

A job is one run unless its folder says otherwise. Folders that `analyze` takes for parts of a run are parts here, and so are
those that layouts.toml names, folders whose names differ in a number only and that hold the same files (nodes), and the one
folder beside a console log (the output folder of the job). Any other folder with logs is a run of its own.

Only regular files are opened, each once whatever names it has; symbolic links to folders are not followed. Nothing is
decided by a clock.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook.outputs import FOLDER, REPORT, VIEWS
from faultproxy.analyzer.ingest import NOT_METRICS, NOT_TRACES, PARTS, facts
from faultproxy.analyzer.ingest.source import natural

#: Entries of a folder tree that are looked at, its depth, and files of it that are offered to the readers.
MAX_ENTRIES, MAX_DEPTH, MAX_FILES = 200_000, 16, 2_000
#: Suffixes of files that are seldom logs.
_SELDOM = ("", ".json", ".txt")
#: Digits of a job's number that no rank has.
_JOB_DIGITS = 4
#: Names shown of those left out for one reason.
_SHOWN = 5
#: Configurations that are tried for the policy's.
_CONFIGS = 8
_NUMBER = re.compile(r"\d+")
#: Sub-folders with a number of this kind are experiments, not nodes.
_EXPERIMENT = re.compile(
    r"^(?:run|exp|experiment|trial|sweep|seed|lr|ablation|baseline|test|try|version|v)(?![a-z])", re.IGNORECASE
)
#: Whose configuration does not describe the policy.
_OTHERS = re.compile(r"critic|reward|(?:^|/)ref(?:erence)?(?:/|$)|draft|teacher|judge", re.IGNORECASE)


@dataclass
class Job:
    """What a job's folder holds: runs by name with their files, the model's facts, and what was left out by reason."""

    folder: Path
    runs: dict[str, list[Path]] = field(default_factory=dict)
    model: facts.Given = field(default_factory=dict)
    ignored: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, reason: str, path: Path) -> None:
        """Name a file or folder that is not read."""
        self.ignored.setdefault(reason, []).append(os.path.relpath(path, self.folder))

    def warnings(self) -> list[str]:
        """What was left out, a sentence a reason."""
        found = []
        for reason, paths in self.ignored.items():
            names = sorted(paths, key=natural)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            found.append(f"not read ({reason}): {', '.join(names[:_SHOWN])}{more}")
        return found


@cache
def _layouts() -> dict[str, dict[str, re.Pattern[str]]]:
    """The tables of layouts.toml: what a name says, and the names that say it."""
    text = files("faultproxy.analyzer.hook").joinpath("layouts.toml").read_text("utf-8")
    return {
        table: {said: re.compile("|".join(map(translate, names)), re.IGNORECASE) for said, names in groups.items()}
        for table, groups in tomllib.loads(text).items()
    }


def _said(name: str, table: str) -> str | None:
    """What a table of layouts.toml says of a name."""
    return next((said for said, names in _layouts()[table].items() if names.match(name)), None)


def discover(folder: Path, out: Path | None = None, job_id: str = "") -> Job:
    """Look through a job's folder; `out` is where our own reports go. Raises InputError when it is no readable folder.

    `job_id` tells its logs from those of other jobs in the folder, where names hold it (`slurm-4711.out`).
    """
    job = Job(folder)
    found: list[Path] = []
    states: list[Path] = []
    configs: list[Path] = []
    for path, weights in _walk(job, out):
        if path.name == "config.json":
            configs.append(path)
        elif path.name == "trainer_state.json" and weights:
            states.append(path)
        elif weights or path.suffix.lower() in NOT_TRACES:
            job.leave_out("weights, code, and settings", path)
        elif reason := _said(path.name, "files"):
            job.leave_out(reason, path)
        elif path.name not in NOT_METRICS:
            found.append(path)
    # Every state repeats those before it; the last one is of the highest step.
    states.sort(key=_natural)
    for path in states[:-1]:
        job.leave_out("an earlier state of the trainer", path)
    found = _of_job(job, found + states[-1:], job_id)
    # Where there are too many, those deep in the folder and those that are seldom logs go first.
    found.sort(key=lambda path: (path.suffix.lower() in _SELDOM, len(path.parts), _natural(path)))
    for path in found[MAX_FILES:]:
        job.leave_out(f"more than {MAX_FILES} files", path)
    job.runs = _runs(folder, found[:MAX_FILES])
    job.model = _model(folder, configs)
    return job


def _natural(path: Path) -> list[tuple[int, int, str]]:
    return natural(str(path))


def _walk(job: Job, out: Path | None) -> Iterator[tuple[Path, bool]]:
    """Regular files, each inode once, and whether they are of a step of the weights; what cannot be read is named."""
    seen: set[tuple[int, int]] = set()
    left = MAX_ENTRIES
    waiting = [(job.folder, 0, False)]
    for base, depth, weights in waiting:  # it grows meanwhile: what is near the top comes first
        try:
            with os.scandir(base) as listing:
                held = list(islice(listing, left + 1))
        except OSError as error:
            if not depth:
                raise InputError(f"{base}: cannot be read ({error.strerror}); --job-dir takes the folder that the job wrote its logs to") from error  # fmt: skip
            job.leave_out(f"cannot be listed: {error.strerror}", base)
            continue
        if len(held) > left:
            job.leave_out(f"in part: more than {MAX_ENTRIES:,} files and folders", base)
            del held[left:]
        left -= len(held)
        for entry in sorted(held, key=lambda entry: natural(entry.name)):
            path = Path(entry.path)
            # A second run must see what the first saw, so not where the hook writes.
            ours = path in (out, job.folder / FOLDER) or base == out and entry.name in (REPORT, *VIEWS)
            if ours or entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            try:
                status = entry.stat()
            except OSError as error:
                job.leave_out(f"cannot be opened: {error.strerror}", path)
                continue
            if reason := _unfit(entry, status, depth):
                job.leave_out(reason, path)
            elif stat.S_ISDIR(status.st_mode):
                waiting.append((path, depth + 1, weights or _said(entry.name, "weights") is not None))
            elif (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield path, weights


def _unfit(entry: os.DirEntry[str], status: os.stat_result, depth: int) -> str | None:
    """Why a file or folder is not looked into."""
    if stat.S_ISDIR(status.st_mode):
        if entry.is_symlink():
            return "a symbolic link to a folder"
        return _said(entry.name, "folders") or (f"deeper than {MAX_DEPTH} folders" if depth >= MAX_DEPTH else None)
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    return None if status.st_size else "empty"


def _of_job(job: Job, found: list[Path], job_id: str) -> list[Path]:
    """The files without those that are alike but for a number and lack the job's, where one has it.

    A short number may be a rank's or a node's.
    """
    if len(job_id) < _JOB_DIGITS:
        return found
    alike = {path: (path.parent, _NUMBER.sub("#", path.name)) for path in found}
    own = {path for path in found if job_id in _NUMBER.findall(path.name)}
    of_own = {alike[path] for path in own}
    others = {path for path in found if path not in own and alike[path] in of_own}
    for path in others:
        job.leave_out("of another job", path)
    return [path for path in found if path not in others]


def _runs(folder: Path, found: list[Path]) -> dict[str, list[Path]]:
    """Which files are one run."""
    own: list[Path] = []
    groups: dict[str, list[Path]] = {}
    for path in found:
        first, *rest = path.relative_to(folder).parts
        if not rest or PARTS.match(first) or _said(first, "parts") or _said(first, "weights"):
            own.append(path)
        else:
            groups.setdefault(first, []).append(path)
    for family in _nodes(folder, groups):
        own += [path for name in family for path in groups.pop(name)]
    if len(groups) == 1:
        own += groups.popitem()[1]
    runs = {folder.name: sorted(own, key=_natural)} if own else {}
    return runs | {f"{folder.name}/{name}": groups[name] for name in sorted(groups, key=natural)}


def _nodes(folder: Path, groups: dict[str, list[Path]]) -> list[list[str]]:
    """Names of folders that are the nodes of one job: alike but for a number, with the same files."""
    families: dict[tuple[str, ...], list[str]] = {}
    for name, paths in groups.items():
        if not _EXPERIMENT.match(name) and _NUMBER.search(name):
            inside = {_NUMBER.sub("#", str(path.relative_to(folder / name))) for path in paths}
            families.setdefault((_NUMBER.sub("#", name), *sorted(inside)), []).append(name)
    return [names for names in families.values() if len(names) > 1]


def _model(folder: Path, configs: list[Path]) -> facts.Given:
    """The facts of the policy's configuration: of the last checkpoint, and not of the critic or the reward model."""
    ranked = sorted(configs, key=_natural, reverse=True)
    ranked.sort(key=lambda path: bool(_OTHERS.search(os.path.relpath(path, folder))))
    for path in ranked[:_CONFIGS]:
        with suppress(InputError):
            return facts.given(str(path))
    return {}
