"""Files built to break the reader: each ends in a clear refusal (2) or a partial answer that says so (0), in bounded memory and time.

Every case runs `analyze` as a process of its own, so its time and its peak memory are its own. Sizes are small by
default; `FAULTPROXY_FULL=1` runs them at full size (minutes), and `python tests/test_hostile.py [NAME...]` prints the
table of figures.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FULL = os.environ.get("FAULTPROXY_FULL") == "1" or __name__ == "__main__"
SECONDS, PEAK = 60, 1 << 30
MIB = 1 << 20
ANALYZE = "from faultproxy.analyzer.cli import analyze_main; analyze_main()"
#: A payload that ran would leave this file in the working folder.
CANARY = "executed"
CASES: list[Case] = []


class Case(NamedTuple):
    """One hostile input. `says` must be in the message or a warning; `code` None allows 0 and 2."""

    name: str
    build: Callable[[Path], Path]
    code: int | None
    says: str


class Result(NamedTuple):
    """What one run of the command did."""

    code: int
    seconds: float
    peak: int
    out: bytes
    err: str


def case(code: int | None = None, says: str = "") -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(build: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CASES.append(Case(build.__name__.strip("_"), build, code, says))
        return build

    return register


def size(full: int, small: int) -> int:
    return full if FULL else small


def write(path: Path, parts: Iterable[bytes]) -> Path:
    with open(path, "wb") as file:
        file.writelines(parts)
    return path


def analyze(*arguments: str | bytes | Path, cwd: Path) -> Result:
    """Run the command as a user would and take its own peak memory from wait4."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen([sys.executable, "-c", ANALYZE, *arguments], stdout=out, stderr=err, cwd=cwd, stdin=subprocess.DEVNULL)  # fmt: skip
        timer = threading.Timer(3 * SECONDS, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        return Result(
            child.returncode, seconds, usage.ru_maxrss * 1024, out.read(), err.read().decode(errors="replace")
        )


def megatron(step: int, loss: str = "1.0") -> bytes:
    return f" [2026-01-01 00:00:00] iteration {step:8d}/ 9000000 | consumed samples: {step * 8} | lm loss: {loss} | grad norm: 1.0 |\n".encode()


def good(rows: int = 60) -> bytes:
    return b"".join(megatron(step) for step in range(1, rows + 1))


# -- empty, foreign, binary -------------------------------------------------------------------------------------------
@case(2, "empty")
def empty(folder: Path) -> Path:
    return write(folder / "empty.log", [])


@case(2, "empty")
def only_blanks(folder: Path) -> Path:
    return write(folder / "blank.log", [b" \n\t\r\n" * MIB])


@case(2, "binary")
def binary(folder: Path) -> Path:
    return write(folder / "noise.log", [bytes(range(256)) * 4096])


@case(2, "pickle")
def pickle_payload(folder: Path) -> Path:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {CANARY}",)

    return write(folder / "metrics.pkl", [pickle.dumps({"loss": Payload()})])


@case(2)
def pickle_protocol_0(folder: Path) -> Path:
    return write(folder / "metrics.log", [b"cos\nsystem\n(S'touch executed'\ntR."])


@case(2, "zip")
def zip_archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "logs.bin", "w") as archive:
        archive.writestr("run.log", good())
    return folder / "logs.bin"


@case(2, "picture")
def png(folder: Path) -> Path:
    return write(folder / "loss.log", [b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20])


@case(2, "SQLite")
def sqlite(folder: Path) -> Path:
    with sqlite3.connect(folder / "runs.log") as con:
        con.execute("CREATE TABLE metrics (step INT, loss DOUBLE)")
    con.close()
    return folder / "runs.log"


@case(0)
def code_in_a_dict(folder: Path) -> Path:
    """Printed dicts and YAML tags are text: nothing in them runs."""
    evil = b"{'loss': __import__('os').system('touch executed'), 'grad_norm': 1.0}\n"
    tag = b"loss: !!python/object/apply:os.system ['touch executed']\n{'loss': open('executed','w'), 'step': 3}\n"
    rows = b"".join(b"{'loss': %d.5, 'grad_norm': 1.0, 'epoch': 0.1}\n" % step for step in range(40))
    return write(folder / "train.log", [rows, evil, tag, rows])


# -- what is no regular file ------------------------------------------------------------------------------------------
@case(2, "neither a file nor a folder")
def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.log")
    return folder / "pipe.log"


@case(2, "no file that could be a trace")
def fifo_in_a_folder(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.log")
    return folder


@case(2, "neither a file nor a folder")
def socket_file(folder: Path) -> Path:
    short = Path(tempfile.mkdtemp())  # a socket's path may hold 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short / "s"))
    return Path(shutil.move(short / "s", folder / "socket.log"))


@case(2, "neither a file nor a folder")
def device(folder: Path) -> Path:
    return Path("/dev/zero")


@case(2, "no file that could be a trace")
def directory_named_as_a_log(folder: Path) -> Path:
    (folder / "train.log").mkdir()
    return folder / "train.log"


@case(2, "no such file")
def symlink_to_itself(folder: Path) -> Path:
    (folder / "self.log").symlink_to("self.log")
    return folder / "self.log"


@case(0)
def symlink_loop_in_a_folder(folder: Path) -> Path:
    (folder / "logs").mkdir()
    write(folder / "logs/train.log", [good()])
    (folder / "logs/up").symlink_to("..")
    (folder / "logs/self.log").symlink_to("self.log")
    return folder


@case(2, "cannot be")
def path_too_long(folder: Path) -> Path:
    return folder / ("a" * 5000)


# -- size -------------------------------------------------------------------------------------------------------------
@case(None)
def one_line_of_text(folder: Path) -> Path:
    return write(folder / "line.log", (b"step 1 loss 0.5 and so on " * 4096 * 10 for _ in range(size(200, 6))))


@case(0, "not read to its end")
def one_line_of_json(folder: Path) -> Path:
    """An array of records on one line, too large to hold."""

    def parts() -> Iterable[bytes]:
        yield b"["
        for part in range(size(200, 40)):
            yield b"".join(b'{"step": %d, "loss": 0.5, "grad_norm": 1.0},' % (part * 22000 + i) for i in range(22000))
        yield b'{"step": 99999999, "loss": 0.5}]'

    return write(folder / "history.json", parts())


@case(None)
def json_of_empty_objects(folder: Path) -> Path:
    """Three bytes in the file, seventy in memory."""
    return write(folder / "a.json", [b'[{"step":1,"loss":1}', *(b",{}" * (MIB // 3) for _ in range(size(62, 3))), b"]"])


@case(None)
def json_of_lists(folder: Path) -> Path:
    return write(folder / "a.json", [b'{"a":[[]', *(b",[]" * (MIB // 3) for _ in range(size(62, 3))), b"]}"])


@case(2)
def json_nested_deeply(folder: Path) -> Path:
    return write(folder / "deep.json", [b'{"a":' * 100_000, b"1", b"}" * 100_000])


@case(2)
def json_lists_nested_deeply(folder: Path) -> Path:
    return write(folder / "deep.json", [b"[" * 100_000, b"]" * 100_000])


@case(0, "1 lines that no reader could parse")
def jsonl_with_a_deep_line(folder: Path) -> Path:
    rows = b"".join(b'{"step":%d,"data":{"actor/grad_norm":1.0}}\n' % step for step in range(40))
    return write(
        folder / "deep.jsonl", [rows, b'{"step":40,"data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n"]
    )


@case(0, "metric names")
def jsonl_ever_new_keys(folder: Path) -> Path:
    lines = (b'{"step":%d,"loss":1.0,"key%d":1.0}\n' % (i, i) for i in range(size(1_000_000, 60_000)))
    return write(folder / "keys.jsonl", lines)


@case(0, "metric names")
def verl_ever_new_keys(folder: Path) -> Path:
    lines = (
        b'{"step":%d,"data":{"actor/grad_norm":1.0,"k/%d":1.0}}\n' % (i, i) for i in range(size(1_000_000, 60_000))
    )
    return write(folder / "keys.jsonl", lines)


@case(0)
def jsonl_keys_in_turn(folder: Path) -> Path:
    """Few names a row, each of many names again and again: padding is what costs."""
    lines = (b'{"step":%d,"loss":1.0,"key%d":1.0}\n' % (i, i % 40_000) for i in range(size(400_000, 50_000)))
    return write(folder / "turn.jsonl", lines)


@case(0)
def ever_new_layers(folder: Path) -> Path:
    lines = (b'{"step":%d,"data":{"actor/grad_norm":1.0,"rollout/moe/max_vio/layer_%d":1.0,"moe/load_balancing_loss_layer_%d":1.0}}\n' % (i, i, i) for i in range(size(200_000, 3_000)))  # fmt: skip
    return write(folder / "layers.jsonl", lines)


@case(None)
def one_object_of_many_keys(folder: Path) -> Path:
    keys = b",".join(b'"key%d":1.0' % i for i in range(size(1_000_000, 100_000)))
    return write(folder / "keys.json", [b'{"step":1,"loss":1.0,', keys, b"}"])


@case(None)
def records_of_many_keys(folder: Path) -> Path:
    """Wide lines of one shape, which the fast path gathers."""
    keys = b",".join(b'"k%d":1.0' % i for i in range(size(250_000, 20_000)))
    return write(folder / "wide.jsonl", (b'{"step":%d,"data":{%s}}\n' % (i, keys) for i in range(size(60, 4))))


@case(None)
def csv_of_many_columns(folder: Path) -> Path:
    count = size(1_000_000, 20_000)
    header = b"step,loss," + b",".join(b"c%d" % i for i in range(count)) + b"\n"
    row = b",1.0" * (count + 1) + b"\n"
    return write(folder / "wide.csv", [header, *(b"%d" % step + row for step in range(20))])


@case(None)
def csv_quote_never_closed(folder: Path) -> Path:
    return write(
        folder / "q.csv",
        [b'step,loss\n1,0.5\n2,0.4\n3,"0.5\n', *(b"%d,0.4\n" % s for s in range(4, size(2_000_000, 20_000)))],
    )


@case(None)
def many_rows(folder: Path) -> Path:
    return write(
        folder / "rows.jsonl",
        (b'{"step":%d,"loss":0.5,"grad_norm":1.0,"lr":1e-6}\n' % i for i in range(size(4_000_000, 20_000))),
    )


@case(2)
def gz_bomb(folder: Path) -> Path:
    with gzip.open(folder / "bomb.log.gz", "wb", compresslevel=9) as file:
        for _ in range(size(10_000, 40)):
            file.write(bytes(MIB))
    return folder / "bomb.log.gz"


@case(None)
def gz_bomb_of_text(folder: Path) -> Path:
    with gzip.open(folder / "bomb.log.gz", "wb", compresslevel=9) as file:
        for _ in range(size(10_000, 40)):
            file.write(b"a" * MIB)
    return folder / "bomb.log.gz"


@case(2)
def zst_bomb(folder: Path) -> Path:
    import zstandard

    with open(folder / "bomb.log.zst", "wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
        for _ in range(size(10_000, 40)):
            file.write(bytes(MIB))
    return folder / "bomb.log.zst"


@case(0)
def gz_bomb_of_log_lines(folder: Path) -> Path:
    block = good(9000)
    with gzip.open(folder / "bomb.log.gz", "wb", compresslevel=9) as file:
        for _ in range(size(100, 2)):
            file.write(block)
    return folder / "bomb.log.gz"


@case(0)
def zst_bomb_of_growing_steps(folder: Path) -> Path:
    import zstandard

    with open(folder / "bomb.log.zst", "wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
        for step in range(size(8_000_000, 20_000)):
            file.write(b"step:%d - actor/grad_norm:1.0 - actor/pg_loss:0.1\n" % step)
    return folder / "bomb.log.zst"


@case(0, "cut off")
def truncated_gz(folder: Path) -> Path:
    return write(
        folder / "cut.log.gz", [gzip.compress(b"".join(megatron(i, f"1.{i}") for i in range(1, 3000)))[:20000]]
    )


@case(0, "cut off")
def truncated_zst(folder: Path) -> Path:
    import zstandard

    data = b"".join(megatron(i, f"{(i * 7919) % 1000003}.{i * i}") for i in range(1, 30000))
    packed = zstandard.ZstdCompressor(level=1).compress(data)
    return write(folder / "cut.log.zst", [packed[: 3 * len(packed) // 4]])


@case(2)
def gz_cut_after_its_header(folder: Path) -> Path:
    return write(folder / "cut.log.gz", [gzip.compress(good())[:12]])


@case(2)
def zst_with_a_huge_window(folder: Path) -> Path:
    return write(folder / "w.log.zst", [b"\x28\xb5\x2f\xfd\x00\xff" + bytes(100)])


# -- bytes and encodings ----------------------------------------------------------------------------------------------
@case(0)
def nul_bytes_in_a_good_log(folder: Path) -> Path:
    return write(
        folder / "nul.log",
        [good(30), bytes(4000), b"\n", b"".join(megatron(i) for i in range(31, 60)).replace(b"lm", b"\x00lm")],
    )


@case(0)
def utf_16_with_bom(folder: Path) -> Path:
    return write(folder / "u.log", [good().decode().encode("utf-16")])


@case(0)
def utf_16_without_bom(folder: Path) -> Path:
    return write(folder / "u.log", [good().decode().encode("utf-16-le")])


@case(None)
def utf_16_of_short_lines(folder: Path) -> Path:
    return write(
        folder / "u.log",
        ["\ufeff".encode("utf-16-le"), *("ab\n".encode("utf-16-le") * (MIB // 6) for _ in range(size(200, 3)))],
    )


@case(0)
def latin_1_and_broken_utf_8(folder: Path) -> Path:
    return write(
        folder / "l.log",
        [
            b"Gr\xfc\xdfe aus \xe9\n",
            good(30),
            b"\xff\xfe\xfd \xc3\x28 \xed\xa0\x80\n",
            b"".join(megatron(i) for i in range(31, 60)),
        ],
    )


@case(None)
def ansi_codes(folder: Path) -> Path:
    return write(
        folder / "a.log",
        [good(), b"\x1b[31m" * (2 * MIB) + b"\n", b"\x1b[0;" + b"0;" * (2 * MIB) + b"\n", b"\x1b[" * (2 * MIB) + b"\n"],
    )


@case(None)
def carriage_returns(folder: Path) -> Path:
    return write(folder / "r.log", [good().replace(b"\n", b"\r") * size(500, 5)])


# -- numbers ----------------------------------------------------------------------------------------------------------
@case(0)
def huge_numbers(folder: Path) -> Path:
    rows = [b'{"step":%d,"data":{"actor/grad_norm":1.0}}\n' % step for step in range(40)]
    digits = b"1" + b"0" * size(100_000, 100_000)
    odd = [
        b'{"step":40,"data":{"actor/grad_norm":1e400,"a":-1e400}}\n',
        b'{"step":41,"data":{"actor/grad_norm":%s}}\n' % digits,
        b'{"step":%s,"data":{"actor/grad_norm":1.0}}\n' % digits,
        b'{"step":42,"data":{"actor/grad_norm":%s,"b":NaN}}\n' % digits[:400],
        b'{"step":43,"data":{"actor/grad_norm":%s}}\n' % digits[:400],
        b'{"step":44,"data":{"actor/grad_norm":%s}}\n' % digits[:30],
        b'{"step":45,"data":{"actor/grad_norm":"%s"}}\n' % digits[:30],
    ]
    return write(folder / "h.jsonl", [*rows, *odd])


@case(0)
def huge_numbers_in_text(folder: Path) -> Path:
    nines = b"9" * 100_000
    return write(
        folder / "h.log",
        [
            good(),
            *(
                b" iteration %d/ 900 | lm loss: %s | grad norm: %s |\n" % (61 + i, value, value)
                for i, value in enumerate(
                    (nines, nines[:400], b"1,000" + b",000" * 200, nines[:390] + b"%", b"1e99999", b"-" + nines[:399])
                )
            ),
        ],
    )


@case(0)
def odd_steps(folder: Path) -> Path:
    steps = [
        "9223372036854775808",
        "9223372036854775807",
        "4611686018427387904",
        "4611686018427387903",
        "-1",
        "NaN",
        "Infinity",
        "1e300",
        "1.5",
        "true",
        "null",
        '"7"',
        "[]",
        "{}",
    ]
    rows = [
        f'{{"step":{step},"loss":0.5,"grad_norm":1.0}}\n{{"step":{step},"data":{{"actor/grad_norm":1.0}}}}\n'
        for step in [*range(40), *steps]
    ]
    return write(folder / "s.jsonl", [row.encode() for row in rows])


@case(0)
def odd_steps_in_a_table(folder: Path) -> Path:
    steps = [*map(str, range(40)), "9223372036854775808", "-1", "nan", "inf", "1e300", "1.5", "", "9" * 400, "x"]
    return write(folder / "s.csv", [b"step,loss\n", *(f"{step},0.5\n".encode() for step in steps)])


@case(0)
def layers_and_ranks_out_of_range(folder: Path) -> Path:
    many = "9" * 180
    rows = [
        f'{{"step":{i},"data":{{"actor/grad_norm":1.0,"rollout/moe/max_vio/layer_{many}":1.0,"moe/load_balancing_loss_layer_{many[:12]}":1.0}}}}\n'
        for i in range(40)
    ]
    return write(folder / "rank_999999.jsonl", [row.encode() for row in rows])


@case(0)
def clocks_out_of_range(folder: Path) -> Path:
    return write(
        folder / "c.log",
        [
            good(),
            *(
                megatron(61 + i).replace(b"2026-01-01 00:00:00", clock)
                for i, clock in enumerate(
                    (b"2026-13-01 00:00:00", b"2026-02-30 00:00:00", b"2026-00-00 99:99:99", b"2099-12-31 24:61:61")
                )
            ),
        ],
    )


# -- names ------------------------------------------------------------------------------------------------------------
@case(0)
def keys_with_lone_surrogates(folder: Path) -> Path:
    return write(
        folder / "k.jsonl",
        (b'{"step":%d,"loss":0.5,"grad_norm":NaN,"\\ud800":1.0,"\\u001b[31m\\n\\"":2.0}\n' % i for i in range(40)),
    )


@case(0)
def keys_of_many_segments(folder: Path) -> Path:
    keys = (b"a/" * 50_000, b"x" + b" (a)" * 50_000, b"eval/" * 50_000, b"a" * 200_000, b" " * 200_000)
    return write(
        folder / "k.log",
        [
            good(),
            *(b"step:%d - actor/grad_norm:1.0 - %s:1.0\n" % (70 + i, key) for i, key in enumerate(keys)),
            *(b'{"step":%d,"loss":1.0,"%s":2.0}\n' % (80 + i, key) for i, key in enumerate(keys)),
            *(b" iteration %d/ 900 | lm loss: 1.0 | %s: 2.0 |\n" % (90 + i, key) for i, key in enumerate(keys)),
        ],
    )


@case(0)
def odd_file_names(folder: Path) -> Path:
    for name in (
        b"a\nb.log",
        b"a'b\"c.log",
        b"\xff\xfe.log",
        b"\x1b[31m.log",
        "\u00b2".encode(),
        b"-rf.log",
        b"$(touch executed).log",
    ):
        with open(os.fsencode(folder) + b"/" + name, "wb") as file:
            file.write(good())
    return folder


@case(0)
def odd_folder_name(folder: Path) -> Path:
    inner = os.fsencode(folder) + b"/\xff\xfe\n"
    os.mkdir(inner)
    with open(inner + b"/\xff.log", "wb") as file:
        file.write(good())
    with open(inner + b"/\xfe.log", "wb") as file:
        file.write(b"nothing")
    return Path(os.fsdecode(inner))


@case(0, "the first 4096")
def many_files(folder: Path) -> Path:
    (folder / "job").mkdir()
    for i in range(size(20_000, 4_200)):
        write(folder / f"job/out{i}.log", [good(3) if i % 2 else b"nothing here\n"])
    return folder / "job"


@case(0)
def many_runs(folder: Path) -> Path:
    for i in range(size(500, 5)):
        (folder / f"job{i}").mkdir()
        write(folder / f"job{i}/train.log", [good(3)])
    return folder


# -- time: lines that make a backtracking expression explode, a row that makes a search quadratic ---------------------
def _pumped() -> dict[str, bytes]:
    count = size(4 * MIB - 100, 100_000)

    def pump(before: str, unit: str, after: str = "\x01") -> bytes:
        return (before + unit * (count // len(unit)) + after).encode() + b"\n"

    return {
        "digits": pump("iteration 1/2 | lm loss: ", "1", "x |"),
        "verl digits": pump("step:1 - actor/grad_norm:", "1", "x"),
        "blanks before repeated": pump("(a pid=1) ", " ", "x [repeated"),
        "blanks after step": pump("step", " ", "{'loss': 1.0}"),
        "blanks after a step": pump("step 1", " ", "x{'loss': 1.0}"),
        "steps": pump("", "step 1 ", "{'loss': 1.0}"),
        "quotes": pump("{'loss': 1.0, ", "'"),
        "open quotes": pump("{'loss': 1.0, ", "'a ", ""),
        "braces": pump("", "{'", ""),
        "nested": pump("", "{'loss': ", "1}"),
        "keys": pump("{'loss': 1.0, ", "'a' "),
        "calls": pump("{'loss': ", "a(", ")"),
        "wrapped blanks": pump("step:1 - loss:1.0", " - a:x(" + " " * 110 + "()"),
        "bars": pump("", "1/1 [", ""),
        "valid": pump("validation loss at iteration 1 ", "valid", " loss at | x"),
        "valid value": pump("validation loss at iteration 1 | ", "a"),
        "valid blanks": pump("validation loss at iteration 1 | ", " a"),
        "out of memory": pump("out of memory ", "CUDA "),
        "timeout": pump("timeout ", "NCCL collective "),
        "hardware": pump("hardware ", "GPU device "),
        "nan": pump("nan NaN ", "loss is "),
        "xid": pump("Xid ", "Xid "),
        "exception": pump("", "aError", "!"),
        "dots": pump("", "a.", "Error!"),
        "key value words": pump("loss", "a ", "=1"),
        "key value blanks": b"".join(b"loss" + b" " * 3900 + b"x\n" for _ in range(count // 3900)),
        "key value digits": b"".join(b"loss=" + b"1" * 3900 + b"_\n" for _ in range(count // 3900)),
        "key value letters": b"".join(b"loss=" + b"a" * 3900 + b"\n" for _ in range(count // 3900)),
        "key value steps": b"".join(b"step" + b" " * 3900 + b"loss=x\n" for _ in range(count // 3900)),
        "overflow": pump("OVERFLOW! Attempted loss scale: ", "1", ""),
        "skipped": pump("step=1, skipped=", "9", ", lr=[1]"),
        "json strings": pump('{"loss": 1.0, "a": "', "\\u0000", '"}'),
        "fraction": pump('{"loss": 1.0, "iteration": "', " ", '"}'),
        "bad json": pump('{"a":[', "{},", "}"),
        "commas": pump("step", ","),
        "pipes": pump("step|", "|"),
        "ray": pump("(", "a pid=1 ", ")"),
        "colons": pump("step:1 - ", "a:"),
    }  # fmt: skip


@case(0)
def adversarial_lines(folder: Path) -> Path:
    return write(folder / "p.log", [good(), *_pumped().values()])


@case(None)
def adversarial_lines_for_the_last_resort(folder: Path) -> Path:
    return write(folder / "p.log", [line for name, line in _pumped().items() if "key value" in name])


@case(0)
def evaluations_far_behind(folder: Path) -> Path:
    """Each evaluation row belongs to the first step, a search from the end finds it last."""
    count = size(200_000, 5_000)
    rows = (b"step %d: {'train/loss': 1.0, 'train/grad_norm': 1.0}\n" % i for i in range(1, count))
    late = (b"eval 1: {'eval/loss': 1.0}\n" for _ in range(count))
    return write(folder / "e.log", (line for source in (rows, late) for line in source))


@case(0)
def a_restart_every_row(folder: Path) -> Path:
    return write(folder / "r.log", (megatron(1 + i % 2) for i in range(size(300_000, 5_000))))


@case(0)
def many_events(folder: Path) -> Path:
    line = b"RuntimeError: CUDA error: an illegal memory access was encountered\nTraceback (most recent call last)\n"
    return write(folder / "e.log", [good(), line * size(500_000, 30_000)])


@case(0)
def many_ranks(folder: Path) -> Path:
    lines = (
        b"[rank%d]: " % (i % size(100_000, 500)) + megatron(1 + i // 10).lstrip() for i in range(size(300_000, 5_000))
    )
    return write(folder / "r.log", lines)


@case(2)
def dots_and_digits_without_an_end(folder: Path) -> Path:
    """Dotted paths of settings are looked for in every line: linear, or 100 kB take minutes."""
    return write(folder / "run.log", [b"0." * 50_000 + b"\n"])


@case(2)
def one_word_of_a_dllogger_line(folder: Path) -> Path:
    return write(folder / "run.log", [b"DLL 2026-08-01 10:00:00.1 - (0, 10) " + b"A" * 100_000 + b"\n"])


@case(0)
def a_superscript_for_a_step(folder: Path) -> Path:
    line = '2021-03-08 12:32:33 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.446", "num_updates": "\u00b2", "gnorm": "1"}\n'
    return write(folder / "run.log", [line.encode()])


@case(0)
def half_a_surrogate_in_a_notebook(folder: Path) -> Path:
    text = r'{"cells":[{"cell_type":"code","outputs":[{"output_type":"stream","text":"step: 1 loss: 2.0\nstep: 2 loss: \ud800 1.0\n"}]}]}'
    return write(folder / "run.ipynb", [text.encode()])


def check(case: Case, folder: Path) -> tuple[Result, str, str]:
    """Build a case, run it, and say what is wrong with the answer (empty when nothing is)."""
    work = folder / "cwd"
    work.mkdir()
    (folder / "input").mkdir()
    path = case.build(folder / "input")
    result = analyze(path, "--format", "json", cwd=work)
    shutil.rmtree(folder / "input")
    message, wrong = result.err, []
    if result.code == 0:
        reports = json.loads(result.out)
        reports = reports if isinstance(reports, list) else [reports]
        notes = [*reports[0]["warnings"]]
        notes += [
            f"{s['unparsed']} lines that no reader could parse" for s in reports[0]["run"]["sources"] if s["unparsed"]
        ]
        message = " / ".join([f"{reports[0]['verdict']} {reports[0]['run']['steps']} steps", *notes])
        json.dumps(reports, allow_nan=False).encode()
    if result.code not in ((0, 2) if case.code is None else (case.code,)):
        wrong.append(f"exit {result.code}")
    if "Traceback" in result.err:
        wrong.append("a traceback")
    if result.code == 2 and not result.err.startswith("error: "):
        wrong.append("no message")
    if case.says not in message:
        wrong.append(f"does not say {case.says!r}")
    if result.seconds > SECONDS:
        wrong.append(f"{result.seconds:.0f} s")
    if result.peak > PEAK:
        wrong.append(f"{result.peak / MIB:.0f} MiB")
    if any(work.iterdir()):
        wrong.append("something was executed or written")
    return result, message, ", ".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(tmp_path: Path, case: Case) -> None:
    result, message, wrong = check(case, tmp_path)
    assert not wrong, f"{wrong}; {message[-2000:]} {result.err[-2000:]}"


# -- small files that cost much: routing traces, broken dicts, and critics ----------------------------------------------
def test_experts_of_one_step_are_bounded(tmp_path: Path) -> None:
    def build(folder: Path) -> Path:
        line = b'{"step":0,"layer":%d,"top_indices":[[0,16383]]}\n'
        return write(folder / "router.jsonl", (line % layer for layer in range(1_024)))

    result, message, wrong = check(Case("experts", build, 0, "experts of a layer were kept"), tmp_path)
    assert not wrong and "records were not kept" in message and result.seconds < 15, (wrong, message, result.seconds)


def test_a_recompute_factor_of_400_digits_is_an_unparsed_row(tmp_path: Path) -> None:
    def build(folder: Path) -> Path:
        line = b'{"step":%d,"layer":0,"tokens_per_expert":[1.5,2],"recompute_factor":%s}\n'
        return write(folder / "router.jsonl", [line % (1, b"2"), line % (2, b"9" * 400)])

    _, message, wrong = check(Case("factor", build, 0, "1 lines that no reader could parse"), tmp_path)
    assert not wrong, (wrong, message)


def test_a_dict_broken_over_ever_more_lines_takes_linear_time(tmp_path: Path) -> None:
    def build(folder: Path) -> Path:
        head = b"step 61: {'train/pg_loss': 0.5,\n"
        return write(folder / "slime.log", [good(), *([head, b"'\n" * 60_000] * 5)])

    result, message, wrong = check(Case("dict", build, 0, ""), tmp_path)
    assert not wrong and result.seconds < 10, (wrong, message, result.seconds)


def test_a_critic_far_ahead_takes_bounded_time(tmp_path: Path) -> None:
    def build(folder: Path) -> Path:
        critic = (b"critic-step %d: {'train/critic-value_loss': 0.5}\n" % (10**6 + i) for i in range(20_000))
        actor = (b"step %d: {'train/pg_loss': 0.5, 'train/grad_norm': 1.0}\n" % i for i in range(20_000))
        return write(folder / "slime.log", [*critic, *actor])

    result, message, wrong = check(Case("critic", build, 0, ""), tmp_path)
    assert not wrong and result.seconds < 10, (wrong, message, result.seconds)


if __name__ == "__main__":
    failed = 0
    for each in CASES:
        if len(sys.argv) > 1 and each.name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            found, message, wrong = check(each, Path(temporary))
        print(
            f"{each.name:40} {found.code:3} {found.seconds:6.1f} s {found.peak / MIB:6.0f} MB  {wrong and '!! ' + wrong + ' !!'} {message[:160]!r}",
            flush=True,
        )
        if wrong:
            failed += 1
            print("     ", repr(found.err[-700:]))
    sys.exit(bool(failed))
