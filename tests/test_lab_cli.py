"""`faultproxy lab` as a user meets it, and the two views of a run: sparklines and a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from faultproxy import __version__
from faultproxy.analyzer import cli
from faultproxy.analyzer.commands import lab
from faultproxy.proxy.lab import programs, show
from faultproxy.proxy.run import inject
from faultproxy.proxy.run.config import ModelSpec, Program

PROGRAM = programs.programs()[0].name
Called = tuple[int, str, str]


@pytest.fixture
def faultproxy(capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Called]:
    def call(*arguments: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["faultproxy", "lab", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return call


def log(path: str, seed: int, **changes: Callable[[int], float]) -> str:
    """A JSON-lines log of 20 steps; changed signals differ from step 9 on."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, 21):
        row = {
            "step": step,
            "loss": 2 - step / 20 + 0.02 * rng.normal(),
            "grad_norm": 1 + 0.1 * rng.normal(),
            "lr": 1e-4,
        }
        rows.append(row | {name: change(step) for name, change in changes.items() if step > 8})
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- list -------------------------------------------------------------------------------------------------------------
def test_list_names_every_program_and_every_fault(faultproxy: Callable[..., Called]) -> None:
    for flags, known in ((), programs.programs()), (("--faults",), inject.faults()):
        code, out, _ = faultproxy("list", *flags)
        assert code == 0 and [line.split()[0] for line in out.splitlines()][1:] == [entry.name for entry in known]
        written = json.loads(faultproxy("list", *flags, "--json")[1])
        assert [row["name"] for row in written] == [entry.name for entry in known]


# -- run --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-program"], "'no-such-program' is no program"),
        ([PROGRAM, "--fault", "no_such_fault"], "'no_such_fault' is no fault"),
        (
            [PROGRAM, "--fault", "fp16_gradient_underflow", "--onset", "90", "--steps", "20"],
            "allowed is a step from 1 to 20",
        ),
        ([PROGRAM, "--fault", "critic_broken"], "programs that fit are"),
        ([PROGRAM, "-o", "run.csv"], "allowed are NAME.parquet and NAME.trace"),
        ([PROGRAM, "-o", "there.trace"], "exists already"),
        ([PROGRAM, "--severity", "7"], "not in the range"),
    ],
)
def test_what_cannot_run_is_said_before_anything_runs(
    arguments: list[str], said: str, faultproxy: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from faultproxy.proxy.lab import corpus

    monkeypatch.setattr(corpus, "simulate", lambda *_, **__: pytest.fail("it ran"))
    Path("there.trace").mkdir()
    code, out, err = faultproxy("run", *arguments)
    assert (code, out) == (2, "") and said in err


@pytest.mark.parametrize("arguments", [["run", PROGRAM], ["generate"]])
def test_without_torch_it_says_what_to_install(
    arguments: list[str], faultproxy: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "find_spec", lambda name: None if name == "torch" else object())
    code, _, err = faultproxy(*arguments)
    assert (code, err) == (2, "error: this needs torch, not installed here; run pip install 'faultproxy[proxy]'\n")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A dense model of two layers that every command takes for the program asked for."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("FAULTPROXY_CACHE", str(tmp_path / "warm"))
    small = ModelSpec("llama", layers=2, hidden=16, heads=2, kv_heads=1, width=16)
    program = Program("tiny", "sort", small, prompts=4, group=4, steps=12, warmup_steps=5)
    monkeypatch.setattr(programs, "program", lambda name: program)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_faulty_run_is_shown_beside_its_twin_named_and_kept(tiny: None, faultproxy: Callable[..., Called]) -> None:
    code, out, err = faultproxy("run", "tiny", "--fault", "learning_rate_zero", "--onset", "5", "-o", "bad.trace")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].endswith("12 steps, fault from 5") and lines[-1].startswith("label   zero_gradient from step 5:")
    assert float(lines[1].split()[1]) < -3 and "bad.trace: run tiny/learning_rate_zero.2@5/s0" in err
    code, out, err = faultproxy("show", "bad.trace")
    assert code == 0 and "12 steps" in out and "twin" not in out
    assert faultproxy("run", "tiny", "-o", "good.parquet")[0] == 0
    code, out, _ = faultproxy("show", "bad.trace", "--against", "good.parquet", "--all")
    assert code == 0 and out.splitlines()[0].endswith("12 steps, fault from 5")
    code, out, err = faultproxy("export", "bad.trace", "--format", "verl-console", "--level", "1")
    assert code == 0 and "actor/lr:" in out, err


# -- show -------------------------------------------------------------------------------------------------------------
def test_the_most_moved_signal_comes_first_and_nan_is_a_mark(faultproxy: Callable[..., Called]) -> None:
    healthy = [log(f"good{seed}.jsonl", seed) for seed in range(3)]
    bad = log("bad.jsonl", 0, grad_norm=lambda step: 50.0 * step, loss=lambda step: float("nan") if step > 18 else 1.5)
    against = [word for path in healthy for word in ("--against", path)]
    code, out, _ = faultproxy("show", bad, *against)
    head, *rows = out.splitlines()
    assert code == 0 and head.endswith("20 steps, fault from 9")
    assert [row.split()[0] for row in rows] == ["loss", "grad_norm", "lr"]
    assert rows[0].split()[1] == "99.0" and rows[0].split()[2].endswith("!!") and rows[1].endswith("log")
    assert out == faultproxy("show", bad, *against)[1]
    assert max(map(len, out.splitlines())) <= 120


def test_a_page_is_one_file_that_escapes_loads_nothing_and_says_the_version(faultproxy: Callable[..., Called]) -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    bad = log("bad.jsonl", 0, **{"grad_norm": lambda step: 50.0, name: lambda step: float("inf")})
    code, out, err = faultproxy("show", bad, "--against", log("good.jsonl", 0), "--html", "page.html")
    page = Path("page.html").read_text()
    assert (code, out) == (0, "") and "page.html: 4 signals" in err
    assert "<script" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert "http" not in page.replace("http-equiv", "") and f"faultproxy {__version__}" in page
    assert page.count("<svg") == 4 and 'class="twin"' in page and 'class="onset"' in page and 'class="bad"' in page
    code, _, err = faultproxy("show", bad, "--html", "page.html")
    assert code == 2 and "exists already" in err


def test_several_runs_at_one_path_are_refused(faultproxy: Callable[..., Called]) -> None:
    for run in ("a", "b"):
        Path(f"jobs/{run}").mkdir(parents=True)
        log(f"jobs/{run}/train.jsonl", 0)
    code, _, err = faultproxy("show", "jobs")
    assert code == 2 and "got 2 runs" in err


def test_a_line_without_values_and_a_constant_are_drawn() -> None:
    run = {"empty": np.full(4, np.nan), "constant": np.ones(4), "gap": np.array([0.0, np.nan, 1.0, -np.inf])}
    drawn = show.text(run, None, {}).splitlines()
    assert [line.split("  ")[1] for line in drawn[1:]] == ["   ", chr(0x2585) * 4, "\u2581 \u2588!"] or len(drawn) == 4
    assert show.fork(run, run) is None and show.fork(run, {"other": np.ones(4)}) == 1
    assert show.html("t", run, None, {}, None, ["note"]).count("<figure>") == 3
