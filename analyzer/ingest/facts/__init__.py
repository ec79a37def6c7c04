"""Facts about a run: what its logs print at their start, and the configurations, scripts, and model card beside them.

Metrics stay what they are: nothing here adds a row, a source, or a run. Where two sources disagree the one nearer to what
ran wins (`--model-config`, a command line, a printed configuration, a launch script, YAML, JSON) and a warning names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import UnreadableError
from faultproxy.analyzer.ingest.facts.marks import MARKS
from faultproxy.analyzer.ingest.facts.neighbours import beside
from faultproxy.analyzer.ingest.source import File

if TYPE_CHECKING:
    from faultproxy.analyzer.ingest.facts.found import Found

__all__ = ["Given", "gather", "given"]

#: Text logs of one run whose heads are read: the first ranks print what all run with.
_MAX_LOGS = 8
#: Bytes of a log in which its configuration must stand; loading messages of 1,000 ranks fit in front of it.
_HEAD = 1 << 20
Given = Mapping[str, tuple[Any, str]]


def gather(folder: Path | None, files: list[Path], texts: list[File], alone: bool, shape: Given) -> Found | None:
    """All facts about one run of `files`, of which `texts` are text logs; it lies in `folder` (None: stdin).

    `alone`: one file was pointed at, so what lies beside it may belong to others. `shape`: the model as the user gave it.
    Most logs have nothing to say; they pay for a look at their head and their folder, and for no import.
    """
    heads = [(str(file.path), head) for file in texts[:_MAX_LOGS] if (head := _head(file))]
    near = beside(folder, files, alone) if folder is not None else None
    if not (shape or heads or near and any(near)):
        return None
    from faultproxy.analyzer.ingest.facts import documents, printed
    from faultproxy.analyzer.ingest.facts.found import GIVEN, Found
    from faultproxy.analyzer.ingest.facts.settings import derive

    found = Found()
    for fact, (value, origin) in shape.items():
        found.put(fact, value, origin, GIVEN)
    for path, head in heads:
        printed.read(head, path, found)
    if near is not None:
        documents.read(near, found)
    derive(found)
    return found


def _head(file: File) -> str | None:
    """The head of a text log if it holds a mark of what printed.py reads."""
    try:
        text = b"".join(file.chunks(limit=_HEAD)).decode(file.encoding, errors="replace")
    except UnreadableError:
        return None
    return text if any(mark in text for mark in MARKS) else None


def given(path: str) -> Given:
    """The facts of a model configuration that the user named; raises UnreadableError when it is none."""
    from faultproxy.analyzer.ingest.facts.documents import json_object
    from faultproxy.analyzer.ingest.facts.model import describe, is_model

    if not path:
        raise UnreadableError("no path: --model-config is empty; give a config.json or the folder that holds it")
    try:
        target = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    except OSError as error:  # a folder above without rights, a name longer than the system allows
        raise UnreadableError(f"{path}: cannot be reached ({error.strerror}); check the path and its rights") from error
    config = json_object(target)
    if config is None or not is_model(config):
        raise UnreadableError(
            f"{path}: is no model configuration; --model-config takes the config.json of a Hugging Face checkpoint "
            "(an object with model_type and num_hidden_layers), or the folder that holds it"
        )
    return {fact: (value, str(target)) for fact, value in describe(config).items()}
