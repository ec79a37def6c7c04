"""Finds what a text log says about its run before the first step: argument dumps, printed configurations, command lines.

Only the head of the log comes here, and only when it holds a mark of such a text.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.facts import launch, literal
from faultproxy.analyzer.ingest.facts.found import COMMAND, PRINTED, Found, Leaf, scalar
from faultproxy.analyzer.ingest.facts.marks import MARKS
from faultproxy.analyzer.ingest.facts.names import ENGINE
from faultproxy.analyzer.ingest.facts.settings import Source, environment, interpret, program
from faultproxy.analyzer.ingest.text import unprefixed
from faultproxy.analyzer.ingest.tokens import plain
from faultproxy.analyzer.lazy import lazy

#: Lines and characters of one dump (slime on Megatron has about 900 lines), and lines in a row that are not its own.
_MAX_DUMP, _MAX_TEXT, _MAX_STRANGE = 4000, 512 << 10, 60
#: Blocks and commands that are read: a log of many restarts prints the same again. Characters of one block (verl: 50,000).
_MAX_BLOCKS, _MAX_COMMANDS, _MAX_BLOCK = 12, 40, 128 << 10
_MAX_LINE, _MAX_POINTS = 64 << 10, 1000
_DUMP = lazy(r"-{5,} arguments -{5,}|DeepSpeedEngine configuration")
_DOTTED = lazy(r"(?:^|\]) {0,8}(?P<name>[A-Za-z_]\w{0,100}) \.{2,200} (?P<value>.{0,2000})")
_BLOCK = lazy(
    r"(?P<verl>\{'actor_rollout_ref': \{)|(?P<nemo>Final config:)|(?P<deepspeed>\bjson = \{)|(?P<model>Model config \w{1,80} \{)"
    r"|(?P<vllm>LLM engine \(v[^)]{1,60}\) with config: )|\b(?P<args>ServerArgs|TrainingArguments|Seq2SeqTrainingArguments|(?:GRPO|DPO|SFT|PPO|RLOO|KTO|ORPO|CPO|Reward)Config|Namespace)\("
)


def read(text: str, path: str, found: Found) -> None:
    """Put what the head of a text log says about its run."""
    printed, command = Source(path, PRINTED), Source(path, COMMAND)
    blocks = commands = last = reached = 0
    number = 1
    for start in _points(text):
        number += text.count("\n", last, start)
        last = start
        if number <= reached:
            continue
        line = _line(text[start : start + _MAX_LINE].partition("\n")[0])
        if (dump := _DUMP.search(line)) and blocks < _MAX_BLOCKS:
            blocks += 1
            lines = text[start : start + _MAX_TEXT].split("\n", _MAX_DUMP)
            leaves, reached = _dump([_line(line) for line in lines[1:_MAX_DUMP]], number)
            _dumped(leaves, "DeepSpeed" in dump[0], printed, found)
        elif (block := _BLOCK.search(line)) and blocks < _MAX_BLOCKS:
            blocks += 1
            reached = _block(
                [_line(line) for line in text[start : start + _MAX_BLOCK].split("\n")], number, block, printed, found
            )
        elif commands < _MAX_COMMANDS and (ran_here := launch.command(line, number)):
            commands += 1
            ran(ran_here, number, command, found)


def _points(text: str) -> list[int]:
    """Where the lines begin that hold a mark."""
    starts = set()
    for mark in MARKS:
        at = text.find(mark)
        for _ in range(_MAX_POINTS):
            if at < 0:
                break
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(mark, end) if end >= 0 else -1
    return sorted(starts)


def _line(line: str) -> str:
    return unprefixed(plain(line[:_MAX_LINE].rstrip("\r")))[0]


def _block(lines: list[str], number: int, block: re.Match[str], source: Source, found: Found) -> int:
    """Put what the bracket that opens on line `number` states; returns the line that it reaches to."""
    start = block.start() if block["verl"] else block.end() - (not block["nemo"])
    if block["vllm"]:  # `key=value, ...` to the end of the line
        leaves = literal.leaves(f"x({lines[0][block.end() :]})", 1, number)
    else:
        leaves = literal.leaves("\n".join(lines), start, number)
    if block["vllm"] or block["args"] == "ServerArgs":
        for name in ENGINE.keys() & leaves.keys():
            found.put(ENGINE[name], leaves[name][0], source.at(leaves[name][1]), source.near)
    else:
        interpret(leaves, source, found)
    if block["args"] and block["args"].endswith("Config"):
        kind = block["args"].removesuffix("Config").lower()
        program(["trl", "rm" if kind == "reward" else kind], number, source, found)
    return max(number, max((line for _, line in leaves.values()), default=0))


def ran(command: launch.Command, line: int, source: Source, found: Found) -> None:
    """Put what one command states."""
    interpret(command.settings, source, found)
    environment(command.environment, source, found)
    program(command.words, line, source, found)


def _dump(lines: list[str], number: int) -> tuple[dict[str, Leaf], int]:
    """The `name ..... value` lines after line `number`, and the last of them; other ranks' lines in between are passed over."""
    leaves: dict[str, Leaf] = {}
    last, strange = number, 0
    for line in lines:
        number += 1
        entry = _DOTTED.search(line)
        if entry:
            value = entry["value"].strip()
            leaves.setdefault(entry["name"], (_listed(value) if value[:1] == "[" else scalar(value), number))
            last, strange = number, 0
        elif "end of arguments" in line or "json = {" in line or (strange := strange + 1) > _MAX_STRANGE:
            break
    return leaves, last


def _listed(value: str) -> object:
    held = literal.leaves("{x:" + value + "}").get("x")
    return value if held is None else held[0]


def _dumped(leaves: dict[str, Leaf], deepspeed: bool, source: Source, found: Found) -> None:
    interpret(leaves, source, found)
    if not deepspeed and "num_layers" in leaves:
        framework = "slime" if "rollout_num_gpus" in leaves else "megatron"
        found.put("framework", framework, source.at(leaves["num_layers"][1]), source.near)
