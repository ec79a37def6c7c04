"""The small files of a checkpoint that a proxy takes along as they are: tokenizer, chat template, generation defaults, remote code, licence.

Nothing in them is run. A link that leads out of the checkpoint is refused: the proxy of a folder that someone else packed must not carry
off a file of this machine. The one layout with such links that is known, the cache of Hugging Face, is.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.checkpoint import CONFIG, INDEX
from faultproxy.proxy.source import Source

_NAMES = re.compile(
    r"(tokenizer|special_tokens|added_tokens|vocab|merges|chat_template|generation_config|tekken|tiktoken|spiece|sentencepiece|LICENSE|"
    r"LICENCE|NOTICE)[A-Za-z0-9_.-]*|[A-Za-z0-9_]*(processor|preprocessor)_config\.json|[A-Za-z0-9_.-]+\.(py|model|tiktoken|jinja)"
)
#: The largest tokenizer.json known here has about 35 MB.
LIMIT = 64 * 2**20
_LIMIT_OF_ALL = 256 * 2**20


def belongs(name: str) -> bool:
    """Whether a build writes files of this name, proxy.json aside."""
    return bool(_NAMES.fullmatch(name)) or name in (CONFIG, INDEX) or name.endswith(".safetensors")


def side_files(source: Source) -> list[str]:
    """Names of the files to take along.

    Raises:
        InputError: One is too large, or a link that leads out of the checkpoint.
    """
    found = [
        name
        for name in source.files()
        if _NAMES.fullmatch(name) and name not in (CONFIG, INDEX) and not name.endswith(".safetensors")
    ]
    sizes = {name: source.size(name) for name in found}
    if sum(sizes.values()) > _LIMIT_OF_ALL or max(sizes.values(), default=0) > LIMIT:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"{source.where(largest)} has {sizes[largest]} bytes, the files beside the weights {sum(sizes.values())}; at most {LIMIT} and "
            f"{_LIMIT_OF_ALL} are copied: move what is no tokenizer or code elsewhere"
        )
    if source.local:
        here = source.local.resolve()
        blobs = here.parent.parent / "blobs" if here.parent.name == "snapshots" else here
        for name in found:
            target = (here / name).resolve()
            if target.parent not in (here, blobs):
                raise InputError(
                    f"{source.where(name)} is a link to {visible(str(target), 200)}, outside of the checkpoint; put a copy in its place"
                )
    return found
