"""A mutation fuzzer for the readers and what follows them: `python tests/fuzz.py --seconds 600 --seed 1`.

Seeds in every format are mutated and read, diagnosed, and rendered in this process, each input under an alarm and an
address-space limit. Anything but FaultproxyError is a finding: its input is kept, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import orjson

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import FaultproxyError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document

ALARM_SECONDS, ADDRESS_SPACE = 5, 8 << 30
LONGEST = 200_000
TOKENS = [
    *(b"nan", b"inf", b"-inf", b"NaN", b"null", b"None", b"-1.0", b"-1", b"0.000", b"1e400", b"-1e400", b"1e-400", b"0x10", b"1_0"),
    *(b"9223372036854775807", b"9223372036854775808", b"4611686018427387904", b"-9223372036854775809", b"2147483648", b"9" * 30, b"9" * 400, b"9" * 5000),
    *(b"np.float64(nan)", b"tensor(0.1, device='cuda:0')", b"tensor(", b"((((", b"))))", b"{'", b"'}", b"{\"", b"\"}", b"[[", b"]]", b"{}", b"[]"),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m", b"\x1b[", b"\r", b"\r\n", b"\n", b"\t", b" " * 300, b"|", b":", b"=", b",", b";", b"\"", b"'", b"\\"),
    *(b"\\ud800", b"\\u0000", b"\xed\xa0\x80", b"\xc2\xb2", b"\xd9\xa3", b"\xf0\x9f\x92\xa9", b"\xe2\x80\xa8"),
    *(b"step", b"step:", b"step=", b"iteration 1/2 |", b"global_step", b"loss", b"grad_norm", b"actor/", b"critic/", b"eval_", b"eval/", b"rollout/moe/max_vio/layer_3", b"rank", b"[rank3]: ", b"(WorkerDict pid=1, ip=10.0.0.1) ", b"[repeated 3x across cluster]"),
    *(b"Traceback (most recent call last):", b"torch.OutOfMemoryError: CUDA out of memory", b"Watchdog caught collective operation timeout", b"SIGKILL", b"OVERFLOW! Attempted loss scale: 2, reducing to 1", b"2026-13-45 99:99:99", b"2026-01-01 00:00:00"),
    *(b"true", b"\"step\":", b"\"data\":", b"\"log_history\":", b"\"global_step/max_steps\": \"1/2\"", b"log_history", b"run", b"name,value", b"metric", b"  (a)", b"/" * 50, b" (a)" * 60, b"PAR1", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"),
]  # fmt: skip


def _seeds() -> dict[str, bytes]:
    steps = range(1, 61)
    bad = {s: "nan" if s > 50 else f"{1 / s:.4f}" for s in steps}
    verl = "".join(
        f"(TaskRunner pid=4242) step:{s} - actor/pg_loss:{bad[s]} - actor/grad_norm:np.float64({bad[s]}) - actor/entropy:{2 / s} - critic/rewards/mean:0.4 - rollout/moe/max_vio/layer_1:{s}\n"
        for s in steps
    )
    hf = "".join(
        f"{s}/60 [00:01<00:02]\r{{'loss': {bad[s]}, 'grad_norm': {bad[s]}, 'learning_rate': 1e-05, 'epoch': {s / 60}}}\n"
        for s in steps
    )
    hf5 = "".join(
        f"{{'loss': '{bad[s]}', 'grad_norm': '{bad[s]}', 'reward': '0.1', 'kl': '{s}', 'epoch': '0.01'}}\n"
        for s in steps
    )
    slime = "".join(
        f"[2026-08-01 10:00:{s - 1:02d}] model.py:921 - step {s}: {{'train/loss': {bad[s]}, 'train/grad_norm': 1.0}}\n[2026-08-01 10:00:00] x - eval {s}: {{'eval/loss': 0.1}}\n"
        for s in steps
    )
    megatron = "".join(
        f"[2026-01-01 00:{s - 1:02d}:00] iteration {s:8d}/ 600 | consumed samples: {s} | elapsed time per iteration (ms): 12.0 | learning rate: 1.0E-05 | global batch size: 8 | {'' if s > 50 else 'lm loss: 1.2E+00 | '}loss scale: 1.0 | grad norm: {bad[s]} | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        for s in steps
    )
    events = '[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32\nTraceback (most recent call last):\n  File "a"\nRuntimeError: CUDA error: an illegal memory access\n[rank3]: Watchdog caught collective operation timeout\nvalidation loss at iteration 10 | lm loss value: 1.0E+00 | lm loss PPL: 2.0 |\nExitcode SIGKILL\n'
    jsonl = "".join(
        json.dumps(
            {
                "step": s,
                "data": {
                    "actor/grad_norm": None if s > 50 else 1 / s,
                    "actor/pg_loss": float(bad[s]),
                    "rollout/moe/max_vio/layer_2": 1.0,
                },
            }
        )
        + "\n"
        for s in steps
    )
    swift = "".join(
        f'{{"loss": {1 / s}, "grad_norm": {1 / s}, "global_step/max_steps": "{s}/60", "config": {{"d": {{"e": 1}}}}}}\n'
        for s in steps
    )
    state = json.dumps(
        {
            "log_history": [{"step": s, "loss": 1 / s, "grad_norm": float(bad[s]), "epoch": 0.1} for s in steps],
            "max_steps": 60,
        }
    )
    columns = json.dumps({"a": {"step": list(steps), "loss": [1 / s for s in steps]}})
    csv = "step,loss,grad_norm,run\n" + "".join(f"{s},{bad[s]},{1 / s},a\n" for s in steps)
    long = "step,metric,value\n" + "".join(f"{s},loss,{bad[s]}\n{s},grad_norm,1.0\n" for s in steps)
    table = "| Step | Training Loss |\n|---|---|\n" + "".join(f"| {s} | {bad[s]} |\n" for s in steps)
    pairs = "".join(f"step: {s}  loss: {bad[s]}  grad_norm: 1.0  tps: 8,123  lr=1e-5\n" for s in steps)
    named = {"verl.log": verl, "hf.log": hf, "hf5.log": hf5, "slime.log": slime, "megatron.log": megatron + events, "verl.jsonl": jsonl, "swift.jsonl": swift, "trainer_state.json": state, "columns.json": columns, "t.csv": csv, "long.csv": long, "table.md.txt": table, "kv.log": pairs}  # fmt: skip
    return {name: text.encode() for name, text in named.items()}


def _splice(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    other = rng.choice(seeds)
    start = rng.randrange(len(other))
    at = rng.randrange(len(data) + 1)
    return data[:at] + other[start : start + rng.randrange(1, 3000)] + data[at:]


def _lines(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """Lines of two formats in turn, or in another order."""
    lines = data.split(b"\n") + (rng.choice(seeds).split(b"\n") if rng.random() < 0.7 else [])
    if rng.random() < 0.5:
        rng.shuffle(lines)
    return rng.choice((b"\n", b"\r\n", b"\r", b"\n\n")).join(lines)


def _cut(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 5, 40, 400, len(data))) :]


def _double(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.choice((1, 3, 20, 200, 2000))]
    return data[:start] + part * rng.choice((2, 3, 50)) + data[start:]


def _flip(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 30)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _token(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """A hostile token instead of a number, a word, or a piece of punctuation."""
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(len(data) + 1)
        end = at
        while end < len(data) and end < at + 30 and (data[end : end + 1].isalnum() or data[end] in b"._-"):
            end += 1
        data = data[:at] + rng.choice(TOKENS) + data[max(end, at + rng.randrange(2)) :]
    return data


def _everywhere(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    """The same swap in every line, so that the file stays regular enough to be read."""
    words = [word for word in data[:2000].replace(b":", b" ").replace(b",", b" ").split() if len(word) < 40]
    return data.replace(rng.choice(words), rng.choice(TOKENS)) if words else data


def _nest(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{'a': ", b"}"), (b"(", b")"), (b'"', b'"')))
    depth = rng.choice((3, 50, 2000))
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randrange(60))
    return data[:at] + opening * depth + data[at:end] + closing * depth + data[end:]


def _wrap(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    packed = gzip.compress(data, 1)
    return rng.choice((packed, packed[: rng.randrange(len(packed))], data.decode("utf-8", "replace").encode("utf-16"), data.decode("utf-8", "replace").encode("utf-16-le")))  # fmt: skip


MUTATIONS: list[Callable[[bytes, random.Random, list[bytes]], bytes]] = [_splice, _lines, _cut, _double, _flip, _token, _token, _everywhere, _everywhere, _nest]  # fmt: skip


class _TooSlow(Exception):
    pass


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise _TooSlow(f"more than {ALARM_SECONDS} s")


def run(paths: list[str]) -> None:
    """One execution: everything `analyze` does up to the bytes it prints."""
    for trace in read(paths):
        orjson.dumps(json.loads(json.dumps(document(diagnose(trace)), allow_nan=False)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path(tempfile.gettempdir()) / "faultproxy-fuzz")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, _alarm)
    rng = random.Random(arguments.seed)
    seeds = _seeds()
    pool = list(seeds.values())
    seen: dict[str, int] = {}
    executions = refused = 0
    slowest = 0.0
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as temporary:
        while time.monotonic() < end:
            name = rng.choice(list(seeds))
            data = seeds[name]
            for _ in range(rng.choice((1, 1, 2, 3, 6))):
                data = rng.choice(MUTATIONS)(data, rng, pool)[:LONGEST]
            if rng.random() < 0.1:
                data = _wrap(data, rng, pool)
            path = Path(temporary) / (name if rng.random() < 0.8 else rng.choice(list(seeds)))
            path.write_bytes(data)
            paths = [str(path)]
            if rng.random() < 0.1:  # two files of one run
                (Path(temporary) / "run").mkdir(exist_ok=True)
                (Path(temporary) / "run" / "a_rank0.log").write_bytes(data)
                (Path(temporary) / "run" / "b.log").write_bytes(rng.choice(MUTATIONS)(rng.choice(pool), rng, pool))
                paths = [str(Path(temporary) / "run")]
            executions += 1
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
            try:
                run(paths)
            except FaultproxyError:
                refused += 1
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if isinstance(error, KeyboardInterrupt):
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                kind = type(error).__name__ if isinstance(error, _TooSlow) else f"{type(error).__name__} at {where.filename}:{where.lineno}"  # fmt: skip
                seen[kind] = seen.get(kind, 0) + 1
                if seen[kind] <= 3:
                    arguments.save.mkdir(parents=True, exist_ok=True)
                    for source in (Path(p) for p in paths):
                        files = sorted(source.iterdir()) if source.is_dir() else [source]
                        for file in files:
                            (arguments.save / f"{arguments.seed}-{executions}-{file.name}").write_bytes(
                                file.read_bytes()
                            )
                    print(f"finding in execution {executions}: {kind}", file=sys.stderr)
                    if seen[kind] == 1:
                        traceback.print_exc()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, time.monotonic() - start)
    print(f"{executions} executions, {refused} refused, slowest {slowest:.2f} s, {sum(seen.values())} findings of {len(seen)} kinds")  # fmt: skip
    for kind, count in sorted(seen.items(), key=lambda entry: -entry[1]):
        print(f"{count:6} {kind}")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
