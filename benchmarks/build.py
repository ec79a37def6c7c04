"""Speed, memory, remote bytes, and kills of `faultproxy proxy build`, on a synthetic checkpoint with the tensors of Qwen3-30B-A3B.

    python benchmarks/build.py speed|memory|remote|kill [--folder DIR] [--save]

The checkpoint has 48 layers of 128 experts and bf16 weights like Qwen3-30B-A3B, and the names and number of its tensors, but narrower experts:
8 GB instead of 61. One of 2 GB is narrower still, another has 12 layers of the same tensors. Files are sorted by name as transformers writes
them. `--save` writes the result to benchmarks/build.json. Needs 20 GB in DIR.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [str(Path(sys.executable).with_name("faultproxy"))]
EXPERTS, HEADS, KV_HEADS, HEAD, VOCAB = 128, 32, 4, 128, 32_768
#: Layers, hidden size, and width of an expert.
SIZES = {"8 GB": (48, 2048, 78), "2 GB": (48, 1024, 25), "2 GB, 12 layers": (12, 2048, 78)}
SHARD = 2 * 10**9


def make(folder: Path, layers: int, hidden: int, width: int) -> None:
    """Write the synthetic checkpoint; numbers are normal, and no two tensors start with the same ones."""
    import numpy as np

    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden, "num_hidden_layers": layers, "num_experts": EXPERTS,
        "num_experts_per_tok": 8, "moe_intermediate_size": width, "intermediate_size": 6144, "num_attention_heads": HEADS, "head_dim": HEAD,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": {"vocab": {str(n): n for n in range(VOCAB)}}})
    )
    shapes: dict[str, list[int]] = {
        "lm_head.weight": [VOCAB, hidden],
        "model.embed_tokens.weight": [VOCAB, hidden],
        "model.norm.weight": [hidden],
    }
    for n in range(layers):
        inside = {
            f"mlp.experts.{e}.{part}": [width, hidden] for e in range(EXPERTS) for part in ("gate_proj", "up_proj")
        }
        inside |= {f"mlp.experts.{e}.down_proj": [hidden, width] for e in range(EXPERTS)}
        inside |= {"mlp.gate": [EXPERTS, hidden], "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
        inside |= {
            "self_attn.q_proj": [HEADS * HEAD, hidden],
            "self_attn.o_proj": [hidden, HEADS * HEAD],
            "self_attn.q_norm": [HEAD],
        }
        inside |= {
            "self_attn.k_proj": [KV_HEADS * HEAD, hidden],
            "self_attn.v_proj": [KV_HEADS * HEAD, hidden],
            "self_attn.k_norm": [HEAD],
        }
        shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in inside.items()}
    groups: list[list[str]] = [[]]
    room = SHARD
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        if size > room:
            groups.append([])
            room = SHARD
        groups[-1].append(name)
        room -= size
    draw = np.random.default_rng(0)
    block = (draw.standard_normal(2**23, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    weights = {}
    for k, names in enumerate(groups, 1):
        file = f"model-{k:05d}-of-{len(groups):05d}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in sorted(names):
            size = 2 * int(np.prod(shapes[name]))
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            at += size
            weights[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in sorted(names):
                size, start = 2 * int(np.prod(shapes[name])), 2 * int(draw.integers(2**22))
                while size:
                    size -= out.write(block[start : start + size])
                    start = 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


def source(folder: Path, size: str) -> Path:
    path = folder / size.replace(" ", "").replace(",", "-")
    if not (path / "model.safetensors.index.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        # In a process of its own: the memory of a child begins with that of its parent.
        subprocess.run([sys.executable, __file__, "make", "--folder", str(path), "--size", size], check=True)
    return path


def run(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak MB of a process."""
    begun = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed with {process.returncode}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def build(where: str, out: Path, *more: str) -> tuple[float, float]:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    return run([*COMMAND, "proxy", "build", where, str(out), "--experts", str(EXPERTS // 2), *more])


def drop(*folders: Path) -> None:
    """Forget the cached pages of files."""
    for path in (path for folder in folders for path in folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(*folders: Path) -> None:
    for path in (path for folder in folders for path in folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def speed(folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds of builds, and of `cp` of the same shards with fsync, in turns; once with what is read in the page cache, once with nothing.

    Each begins with the same disk and memory: the last result is removed before, so that all write to the same free blocks, and what is
    not read is dropped from the cache, or it drives the source out (seen: 4 of 8 GB were left, and a build took 3.5 s instead of 2).
    """
    original, reference, out = source(folder, "8 GB"), folder / "reference", folder / "proxy"
    build(str(original), reference, "--method", "first")
    kept = sum(path.stat().st_size for path in reference.glob("*.safetensors"))
    script = 'mkdir "$2" && cp --reflink=never "$1"/*.safetensors "$2" && sync "$2"/*.safetensors "$2"'
    found: dict[str, Any] = {"kept_GB": round(kept / 1e9, 3), "repeats": repeats}
    for state, prepare in (("cached", warm), ("cold", drop)):
        times: dict[str, list[float]] = {"auto": [], "first": [], "cp": []}
        turns = ("auto", "cp", "first", "cp")
        for n in range(repeats):
            for what in turns if n % 2 else turns[::-1]:
                shutil.rmtree(out, ignore_errors=True)
                os.sync()
                drop(original, reference)
                prepare(reference if what == "cp" else original)
                if what == "cp":
                    times[what].append(run(["sh", "-c", script, "sh", str(reference), str(out)])[0])
                else:
                    times[what].append(build(str(original), out, "--method", what)[0])
        medians = {what: statistics.median(seconds) for what, seconds in times.items()}
        found[state] = {
            "seconds": {what: [round(one, 2) for one in seconds] for what, seconds in times.items()},
            "GB_per_second": {what: round(kept / 1e9 / median, 2) for what, median in medians.items()},
            "share_of_cp": {what: round(medians["cp"] / medians[what], 2) for what in ("auto", "first")},
        }
    return found


def memory(folder: Path, repeats: int) -> dict[str, Any]:
    """Peak memory of builds of both sizes, and of a bare interpreter."""
    bare = statistics.median(run([sys.executable, "-c", "pass"])[1] for _ in range(repeats))
    found: dict[str, Any] = {"bare_MB": round(bare, 1)}
    for method, weights in (("first", "original"), ("auto", "original"), ("first", "random")):
        peaks = {}
        for size in SIZES:
            where = str(source(folder, size))
            peaks[size] = statistics.median(
                build(where, folder / "proxy", "--method", method, "--weights", weights)[1] for _ in range(repeats)
            )
        found[f"{method}, {weights} weights"] = {
            "MB": {size: round(peak, 1) for size, peak in peaks.items()},
            "beyond_bare_MB": {size: round(peak - bare, 1) for size, peak in peaks.items()},
            "ratio_8_to_2": round(peaks["8 GB"] / peaks["2 GB"], 3),
        }
    return found


def remote(folder: Path, repeats: int) -> dict[str, Any]:
    """Bytes that a local range server sends for a build."""
    sys.path.insert(0, str(ROOT / "tests"))
    from ranges import serve

    original, out = source(folder, "2 GB, 12 layers"), folder / "proxy"
    headers = sum(8 + int.from_bytes(path.open("rb").read(8), "little") for path in original.glob("*.safetensors"))
    found: dict[str, Any] = {
        "source_bytes": sum(path.stat().st_size for path in original.iterdir()),
        "header_bytes": headers,
    }
    for method in ("first", "auto"):
        with serve(original) as site:
            seconds, peak = build(site.url, out, "--method", method)
            size = sum(path.stat().st_size for path in out.iterdir())
            found[method] = {
                "proxy_bytes": size, "sent_bytes": site.sent, "share_of_allowed": round(site.sent / (1.02 * size + headers), 4),
                "sent_beyond_headers_by_proxy": round((site.sent - headers) / size, 4), "requests": len(site.asked), "seconds": round(seconds, 1), "peak_MB": round(peak, 1),
            }  # fmt: skip
        local = folder / "proxy_of_files"
        build(str(original), local, "--method", method)
        found[method]["shards_equal_local"] = {f: d for f, d in digests(local).items() if f != "proxy.json"} == {
            f: d for f, d in digests(out).items() if f != "proxy.json"
        }
    return found


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def kill(folder: Path, repeats: int) -> dict[str, Any]:
    """SIGKILL at random moments, each time gone on with; every finished proxy is compared with one that was never interrupted."""
    draw = random.Random(0)
    found: dict[str, Any] = {}
    for weights, kills in (("original", repeats), ("random", repeats // 5)):
        where, out = str(source(folder, "2 GB")), folder / "proxy"
        more = ("--method", "first", "--weights", weights)
        seconds, _ = build(where, out, *more)
        wanted = digests(out)
        shutil.rmtree(out)
        command = [
            *COMMAND,
            "proxy",
            "build",
            where,
            str(out),
            "--experts",
            str(EXPERTS // 2),
            *more,
            "--format",
            "json",
        ]
        killed = finished = resumed = same = 0
        moments: list[float] = []
        while killed < kills or killed and not finished:
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            begun, moment = time.perf_counter(), draw.uniform(0, seconds)
            try:
                said, _ = process.communicate(timeout=moment if killed < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                killed += 1
                moments.append(moment)
                continue
            if process.returncode:
                raise SystemExit(f"a resumed build failed with {process.returncode}")
            finished += 1
            seconds = time.perf_counter() - begun if json.loads(said)["status"] == "built" else seconds
            resumed += json.loads(said)["status"] != "built"
            same += digests(out) == wanted and not (folder / ".proxy.partial").exists()
            shutil.rmtree(out)
        found[weights] = {
            "kills": killed, "moments_seconds": f"{min(moments):.2f} to {max(moments):.2f}", "finished": finished, "of_them_resumed": resumed, "bit_identical": same,
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory", "remote", "kill", "make"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "faultproxy-build")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--size", choices=list(SIZES), default="8 GB")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder, *SIZES[options.size])
        return
    study, usual = {"speed": (speed, 5), "memory": (memory, 3), "remote": (remote, 1), "kill": (kill, 50)}[options.what]
    result = study(options.folder, options.repeats or usual)
    print(json.dumps(result, indent=1))
    if options.save:
        path = Path(__file__).with_suffix(".json")
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, options.what: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
