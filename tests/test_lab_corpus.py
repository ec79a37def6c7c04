"""The corpus: its design, its files, and that a run forks, resumes, and is made again as it was."""

import json
import operator
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

np = pytest.importorskip("numpy")

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.schema import validate
from faultproxy.proxy.lab import design
from faultproxy.proxy.run.config import FaultSpec, ModelSpec, Program

CORPUS = Path(__file__).parents[1] / "fixtures" / "corpus"


def program(name: str, **options) -> Program:
    return Program(name, "sort", ModelSpec(experts=options.pop("experts", 0)), **{"steps": 32} | options)


def fault(name: str, **options) -> FaultSpec:
    levels = ({"by": 1.0}, {"by": 8.0}, {"by": 64.0})
    base = {"title": name, "mechanism": "gain", "factor": "depth", "cause": "operator", "levels": levels}
    return FaultSpec(name, **base | {"place": "", "models": "", "moves": {"grad_norm": "+"}} | options)


PROGRAMS = {f"p{at:02}": program(f"p{at:02}", experts=8 * (at % 3), steps=30 + at % 7) for at in range(40)}
FAULTS = {f"f{at}": fault(f"f{at}", needs=("moe",) if at % 4 == 0 else ()) for at in range(30)}


def ids(plan) -> set[str]:
    return {run.id for runs in plan.values() for run in runs}


def test_every_fault_and_severity_has_its_quota_of_fitting_programs_and_a_quarter_of_the_runs_is_healthy():
    plan = design.plan(PROGRAMS, FAULTS, 4)
    runs = [run for own in plan.values() for run in own]
    for name, spec in FAULTS.items():
        for severity, least in ((0, 4), (1, 4), (2, 6)):
            used = {run.program for run in runs if (run.fault, run.severity) == (name, severity)}
            assert len(used) == least and all(spec.fits(PROGRAMS[other]) for other in used)
    for own in plan.values():
        healthy = [run.seed for run in own if run.fault is None]
        assert healthy == list(range(len(healthy))) and len(healthy) >= max(16, len(own) / 4)
        assert {run.seed for run in own if run.fault} <= set(design.SEEDS)
    assert len(ids(plan)) == len(runs)
    assert {run.onset for run in runs if run.fault} == set(design.ONSETS)


def test_a_larger_corpus_only_adds_runs_and_a_size_is_reached():
    assert ids(design.plan(PROGRAMS, FAULTS, 4)) < ids(design.plan(PROGRAMS, FAULTS, 7))
    quota = design.quota_for(3000, PROGRAMS, FAULTS)
    assert sum(map(len, design.plan(PROGRAMS, FAULTS, quota).values())) >= 3000
    assert sum(map(len, design.plan(PROGRAMS, FAULTS, quota - 1).values())) < 3000


def test_a_new_fault_leaves_all_cells_and_a_new_program_displaces_few():
    before = {run.cell for runs in design.plan(PROGRAMS, FAULTS, 4).values() for run in runs}
    more_faults = design.plan(PROGRAMS, FAULTS | {"new": fault("new")}, 4)
    assert before <= {run.cell for runs in more_faults.values() for run in runs}
    more_programs = design.plan(PROGRAMS | {"new": program("new", experts=8)}, FAULTS, 4)
    assert len(before - {run.cell for runs in more_programs.values() for run in runs}) < 0.08 * len(before)


def test_a_fault_that_two_programs_fit_comes_back_there_at_other_onsets():
    rare = {"rare": fault("rare", needs=("critic",))}
    plan = design.plan(PROGRAMS | {n: program(n, algorithm="ppo") for n in ("a", "b")}, rare, 4)
    strong = sorted(run.cell for name in "ab" for run in plan[name] if run.severity == 2 and run.seed == 0)
    assert strong == sorted(f"{name}/rare.2@{onset}" for name in "ab" for onset in design.ONSETS)


def test_the_digest_changes_with_what_a_run_does_and_with_nothing_else():
    own, run = program("p"), design.Run("p", 0, 32, "f", 2, 12)
    same = design.digest(run, own, fault("f"))
    assert design.digest(run, own, fault("f", title="other words", moves={})) == same
    assert design.digest(run, own.changed(lr=own.lr), fault("f")) == same
    others = [(run, own.changed(lr=1.0), fault("f")), (run, own.changed(layers=9), fault("f")),
              (replace(run, seed=1), own, fault("f")), (run, own, fault("f", levels=({}, {}, {"by": 2.0})))]  # fmt: skip
    assert len({same, *(design.digest(*other) for other in others)}) == 5


def test_rounding_keeps_ten_bits_zero_integers_and_finiteness():
    from faultproxy.proxy.lab.store import rounded

    values = np.array([0.0, -0.0, 1.0, 2047.0, 1.7976931348623157e308, 5e-324, np.pi, -np.e * 1e-9])
    found = rounded(values)
    assert np.isfinite(found).all() and list(found[:4]) == [0.0, 0.0, 1.0, 2047.0]
    assert abs(found[6:] / values[6:] - 1).max() <= 2.0**-11
    assert (rounded(found) == found).all()


# -- making it, with a loop that is a random walk ----------------------------------------------------------------------
class Walk:
    """A loop in ten lines: its state is one number and one generator, a fault multiplies the gradient norm. It has all
    that corpus.py relies on: steps from 1, recorded as they are made, and exact snapshots."""

    made: ClassVar[list[str]] = []
    broken = ""

    def __init__(self, program, seed, recorder, device):
        self.rng, self.level, self.gain, self.step_number = np.random.default_rng(seed), 1.0, 1.0, 0
        self.recorder, self.name = recorder, program.name
        Walk.made.append(recorder.run)
        if recorder.run == Walk.broken:
            raise RuntimeError("no such kernel")

    def run(self, until):
        while self.step_number < until:
            self.step_number += 1
            self.level += 0.02 + 0.01 * self.rng.normal()
            signals = {
                "reward": self.level,
                "grad_norm": self.gain * (1 + 0.1 * self.rng.random()),
                "step_time": self.rng.random(),
            }
            self.recorder.log(self.step_number, signals)
            self.recorder.log(self.step_number, {"true_reward": self.level}, axis="system", label="hidden")
            self.recorder.log_layers(self.step_number, {"grad_norm": [self.gain, float("nan")]}, [0, 1])

    def snapshot(self):
        return self.rng.bit_generator.state, self.level, self.step_number

    def restore(self, state):
        self.rng.bit_generator.state, self.level, self.step_number = state


@pytest.fixture
def corpus(monkeypatch):
    """corpus.py over two programs and two faults, with the walk as its loop."""
    pytest.importorskip("torch")
    from faultproxy.proxy.lab import corpus, design

    def inject(loop, fault, severity):
        loop.gain = fault.levels[severity]["by"]

    for name, content in {"loop": {"Loop": Walk}, "inject": {"inject": inject}}.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"faultproxy.proxy.run.{name}", module)
    programs = {name: program(name, experts=8) for name in ("one", "two")}
    faults = {"gain": fault("gain"), "noop": fault("noop", cause="data", levels=({"by": 1.0},) * 3)}
    monkeypatch.setattr(corpus, "catalogues", lambda: (programs, faults))
    monkeypatch.setattr(design, "HEALTHY", 4)
    monkeypatch.setattr(Walk, "made", [])
    monkeypatch.setattr(Walk, "broken", "")
    return SimpleNamespace(module=corpus, programs=programs, faults=faults)


def test_a_corpus_is_made_labelled_checked_and_made_again(corpus, tmp_path):
    from faultproxy.proxy.lab import labels, store

    corpus.module.generate(tmp_path, size=1, workers=1)
    rows = store.manifest(tmp_path)
    assert len(rows) == len(ids(design.plan(corpus.programs, corpus.faults, 2))) and not (tmp_path / ".work").exists()
    assert labels.check(tmp_path, corpus.programs, corpus.faults) == []
    validate(tmp_path / "one.parquet")
    strong = [row for row in rows if row["fault"] == "gain" and row["severity"] == 2]
    assert {(row["no_effect"], row["factor"]) for row in strong} == {(False, "depth")}
    assert {(row["no_effect"], row["type"], row["injected"]) for row in rows if row["fault"] == "noop"} == {
        (True, "healthy", True)
    }
    assert {(row["type"], row["learned"], row["twin"]) for row in rows if row["fault"] is None} == {
        ("healthy", True, None)
    }
    sheet = (tmp_path / "DATASHEET.md").read_text()
    assert "| hardware | 0 | 0 | 0 |" in sheet and f"| traces | {len(rows)} |" in sheet
    again = corpus.module.regenerate(tmp_path, 6, seed=1)
    assert [(found.identical, found.same_type, found.effect_difference) for found in again] == [(True, True, 0.0)] * 6


def test_a_fault_run_has_its_twins_steps_before_the_onset_and_its_own_after(corpus, tmp_path):
    from faultproxy.proxy.lab import effect, store

    corpus.module.generate(tmp_path, size=1, workers=1, programs=["one"])
    found = {row["run"]: (row, effect.series(table)) for row, table in store.tables(tmp_path, "one")}
    row, series = next(entry for entry in found.values() if entry[0]["fault"] == "gain" and entry[0]["severity"] == 2)
    twin, before = found[row["twin"]][1], row["onset"] - 1
    assert (series["grad_norm"][:before] == twin["grad_norm"][:before]).all()
    assert (series["grad_norm"][before:] > 60).all() and (series["true_reward"] == twin["true_reward"]).all()
    assert np.isinf(series["grad_norm@1"]).all()
    traces = {row["run"]: trace for row, trace in store.load(tmp_path, "one")}
    assert traces.keys() == found.keys()
    assert traces[row["run"]].facts == traces[row["twin"]].facts and "gain" not in json.dumps(traces[row["run"]].facts)


def test_a_second_call_makes_nothing_a_larger_size_only_what_is_new_and_force_all(corpus, tmp_path):
    corpus.module.generate(tmp_path, size=1, workers=1)
    Walk.made.clear()
    corpus.module.generate(tmp_path, size=1, workers=1)
    assert Walk.made == []
    small = ids(design.plan(corpus.programs, corpus.faults, 2))
    corpus.module.generate(tmp_path, size=len(small) + 1, workers=1)
    again = [run for run in Walk.made if run in small]
    assert Walk.made and all("/healthy/" in run for run in again)
    Walk.made.clear()
    corpus.module.generate(tmp_path, size=1, workers=1, force=True)
    assert set(Walk.made) == small


def test_workers_finish_units_and_raise_what_a_unit_raises():
    from faultproxy.proxy.lab.workers import share

    told = []
    share(operator.contains, [([],), ([],), ([],)], 2, told.append)
    with pytest.raises(TypeError):
        share(operator.truediv, [(1,), (2,)], 2, told.append)
    assert told == []


def test_what_a_kill_left_is_used_and_a_broken_run_is_recorded_and_tried_again(corpus, tmp_path, monkeypatch):
    from faultproxy.proxy.lab import labels, store

    def killed(told):
        if len(Walk.made) == 5:
            raise KeyboardInterrupt

    runs = design.plan(corpus.programs, corpus.faults, 2)["one"]
    with pytest.raises(KeyboardInterrupt):
        corpus.module._make(tmp_path, corpus.programs["one"], corpus.faults, runs, False, killed)
    first = list(Walk.made)
    Walk.broken = next(run.id for run in runs if run.fault == "noop" and run.seed == 2)
    corpus.module.generate(tmp_path, size=1, workers=1, programs=["one"])
    assert set(first[1:]).isdisjoint(Walk.made[5:]) and Walk.made[5] == first[0]
    (failed,) = [row for row in store.manifest(tmp_path) if row["error"]]
    assert (failed["run"], failed["error"], failed["type"]) == (Walk.broken, "RuntimeError: no such kernel", None)
    assert all("two" in problem for problem in labels.check(tmp_path, corpus.programs, corpus.faults))
    Walk.broken, broken = "", Walk.broken
    Walk.made.clear()
    corpus.module.generate(tmp_path, size=1, workers=1, programs=["one"])
    assert Walk.made == ["one/healthy/s2", broken]


def test_the_check_names_every_problem(corpus, tmp_path):
    from faultproxy.proxy.lab import labels, store

    corpus.module.generate(tmp_path, size=1, workers=1)
    shard = store.read_shard(tmp_path / "one.parquet")
    store.write_shard(tmp_path / "one.parquet", list(shard.runs())[1:], facts={}, source="")
    (tmp_path / "two.parquet").rename(tmp_path / "three.parquet")
    stronger = corpus.faults | {"gain": fault("gain", levels=({}, {}, {"by": 9.0}))}
    problems = "\n".join(labels.check(tmp_path, corpus.programs, stronger))
    for part in ("one: not the file", "one: values and manifest differ in 1 runs", "one: not the runs of the design",
                 "two: only in design and manifest", "three: only in folder"):  # fmt: skip
        assert part in problems
    with pytest.raises(InputError, match="no corpus"):
        store.manifest(tmp_path / "nowhere")


def test_an_unknown_program_and_an_onset_out_of_range_are_named(corpus, tmp_path):
    with pytest.raises(InputError, match="'three' is no program"):
        corpus.module.generate(tmp_path, programs=["three"])
    with pytest.raises(InputError, match="onset 33; allowed is a step from 1 to 32"):
        corpus.module.simulate(corpus.programs["one"], corpus.faults["gain"], 2, 33)


@pytest.mark.skipif(not (CORPUS / "manifest.json").is_file(), reason="no corpus in fixtures/corpus")
def test_the_committed_corpus_is_current():
    from faultproxy.proxy.lab import corpus, labels

    assert labels.check(CORPUS, *corpus.catalogues()) == []
