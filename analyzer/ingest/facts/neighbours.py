"""The files beside a run that say how it was set up: found by name, opened by few rules, never more than a few hundred kB.

Only regular files count, and a symbolic link only where it stays in the folder. Which of several launch scripts or
DeepSpeed configurations ran is never guessed: it has the log's name, or a command names it, or it is the only one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from faultproxy.analyzer.lazy import lazy

YAMLS = (
    ".hydra/config.yaml",
    "config.yaml",
    "config.yml",
    "training_args.yaml",
    "accelerate_config.yaml",
    "default_config.yaml",
)
WANDB = "wandb-metadata.json"
#: The folders are where a job keeps its model, and where verl and Megatron-Bridge put the configuration of a checkpoint.
JSONS = ("config.json", "model/config.json", "huggingface/config.json", "hf/config.json", "args.json", WANDB)
CARD = "README.md"
_DEEPSPEED = lazy(
    r"(?:(?:ds|deepspeed)[_-]?(?:conf|z\d|zero)|zero[_-]?\d|stage[_-]?\d)[\w.-]{0,60}\.json$", re.IGNORECASE
)
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
_LOGS = {".log", ".out", ".err", ".txt", ".jsonl", ".csv", ".json", ".parquet"}
#: A folder with more entries is no job folder; then only fixed names are looked for. Folders of one run that are looked into.
_MAX_ENTRIES, _MAX_FOLDERS = 1024, 16
#: Bytes of one neighbour; the configuration of a quantised model, the largest, names its layers in some 100 kB.
MAX_BYTES = 1 << 20


class Neighbours(NamedTuple):
    """Files by what they hold, nearest folder first."""

    yamls: list[Path]
    jsons: list[Path]
    deepspeed: list[Path]
    scripts: list[Path]
    cards: list[Path]


def beside(folder: Path, files: list[Path], alone: bool) -> Neighbours:
    """What lies beside the files of a run: in its folder, and in those of its files. `alone`: one file was pointed at."""
    found = Neighbours([], [], [], [], [])
    folders = list(dict.fromkeys([folder, *(file.parent for file in files[: 4 * _MAX_FOLDERS])]))[:_MAX_FOLDERS]
    for place in folders:
        inside = place.resolve()
        names = _names(place)
        fixed = [name for name in (*YAMLS, *JSONS, CARD) if name.partition("/")[0] in names or names == []]
        for name in fixed:
            path = place / name
            group = found.jsons if name in JSONS else found.cards if name == CARD else found.yamls
            if _usable(path, inside):
                group.append(path)
        found.deepspeed.extend(
            place / name for name in names if _DEEPSPEED.match(name) and _usable(place / name, inside)
        )
        scripts = [name for name in names if name.endswith(_SCRIPTS)]
        if alone:
            same = [name for name in scripts if Path(name).stem == files[0].name.partition(".")[0]]
            logs = sum(Path(name).suffix.lower() in _LOGS and not is_setting(name) for name in names)
            scripts = same or (scripts if logs <= 1 else [])
        if len(scripts) == 1 and _usable(place / scripts[0], inside):
            found.scripts.append(place / scripts[0])
    return found


def is_setting(name: str) -> bool:
    """Whether a JSON file of this name holds settings; that it holds no metrics is then no news."""
    return name in JSONS or _DEEPSPEED.match(name) is not None


def _names(folder: Path) -> list[str]:
    """Names in a folder, in order; none where there are too many."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MAX_ENTRIES:
                    return []
    except OSError:
        return []
    return sorted(names)


def _usable(path: Path, inside: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode) and path.resolve().is_relative_to(inside)
    except (OSError, ValueError, RuntimeError):
        return False


def text(path: Path) -> str | None:
    """The text of a small file, or None when it is large, binary, or cannot be read."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_BYTES or b"\x00" in data[:4096]:
        return None
    return data.decode("utf-8", errors="replace")
