"""`--against`: how two runs are laid beside each other, where they go apart, and what is made of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.against import compare
from faultproxy.analyzer.against.align import align
from faultproxy.analyzer.against.config import differences, ranked
from faultproxy.analyzer.against.divergence import judge
from faultproxy.analyzer.against.multiples import multiples
from faultproxy.analyzer.against.pieces import MOST, pieces
from faultproxy.analyzer.catalogue import catalogue
from faultproxy.analyzer.cli import analyze
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.engine import run
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report import document as documents
from faultproxy.analyzer.report import markdown, text
from faultproxy.analyzer.rulecases import trace
from faultproxy.analyzer.trace import Cell, Column, Source, Trace

ENTROPY, REWARD, NORM = "2-0.02x40~0.02", "0.1+0.01x40~0.02", "1x40~0.1"
GOOD = {"entropy": ENTROPY, "reward": REWARD, "grad_norm": NORM}


def _built(body: dict[str, Any]) -> Trace:
    found = trace(body)
    for source in found.sources:
        source.sha256 = "0" * 64
    return found


def _trace(series: dict[str, str], **more: Any) -> Trace:
    return _built({"series": series, **more})


def _noisy(seed: int, **levels: tuple[float, float, float]) -> Trace:
    """A run of 40 steps; a level is (start, slope, noise)."""
    draw = random.Random(seed)
    lines = {
        name: " ".join(repr(a + b * i + draw.gauss(0, s)) for i in range(40)) for name, (a, b, s) in levels.items()
    }
    return _trace(lines)


def _apart(found: Any) -> dict[str, int]:
    return {one.name: one.step for one in found.series if one.step is not None}


# -- alignment --------------------------------------------------------------------------------------------------------
def test_runs_are_aligned_by_step() -> None:
    found = compare(_trace(GOOD, steps="5+1x40"), _trace(GOOD))
    assert (found.by, found.points) == ("step", 36)


@pytest.mark.parametrize(("signal", "by"), [("consumed_tokens", "tokens"), ("consumed_samples", "samples")])
def test_runs_with_steps_of_another_size_are_aligned_by_what_was_seen(signal: str, by: str) -> None:
    here = _trace({"loss": "3-0.05x20", signal: "200+200x20"})
    good = _trace({"loss": "3-0.025x40", signal: "100+100x40"})
    found = compare(here, good)
    assert (found.by, found.points, _apart(found)) == (by, 20, {})


def test_runs_with_steps_of_one_size_are_aligned_by_step_whatever_was_seen() -> None:
    here = _trace({"loss": "3x20", "consumed_tokens": "101+101x20"})
    assert compare(here, _trace({"loss": "3x20", "consumed_tokens": "100+100x20"})).by == "step"


def test_rows_are_matched_where_a_log_has_no_steps() -> None:
    here = _trace(GOOD)
    here.facts["steps_are_rows"] = True
    found = compare(here, _trace(GOOD, steps="100+100x40"))
    assert (found.by, found.points) == ("row", 40)


def test_a_restart_undoes_what_it_repeats() -> None:
    restarted = _trace(
        {"loss": "3-0.05x15 99x5 2.25-0.05x25", "grad_norm": "1x45"}, steps="1+1x20 16+1x25", segment="0x20 1x25"
    )
    found = compare(restarted, _trace({"loss": "3-0.05x40", "grad_norm": "1x40"}))
    assert (found.points, _apart(found), found.twin) == (40, {}, None)


def test_another_logging_interval_takes_the_nearest_earlier_point() -> None:
    here, good = _trace({"loss": "3-0.01x40"}), _trace({"loss": "2.96-0.05x8"}, steps="5+5x8")
    [piece] = pieces(here, good, align(here, good), [])
    assert [(pair.here.step, pair.good.step) for pair in piece.pairs[:7]] == [
        (5, 5),
        (6, 5),
        (7, 5),
        (8, 5),
        (9, 5),
        (10, 10),
        (11, 10),
    ]
    assert _apart(compare(here, good)) == {}


@pytest.mark.parametrize(
    ("here", "good", "said"),
    [
        (_trace(GOOD), _trace(GOOD, steps="5000+1x40"), "steps 1 to 40 here, 5000 to 5039 there"),
        (_trace(GOOD), _built({"events": [{"kind": "crash"}]}), "it logged no metric"),
        (_built({"events": [{"kind": "crash"}]}), _trace(GOOD), "this run logged no metric"),
        (_trace({"loss": "1x40"}), _trace({"reward": "1x40"}), "no known signal in common"),
    ],
)
def test_nothing_in_common_is_said_and_the_diagnosis_goes_on(here: Trace, good: Trace, said: str) -> None:
    report = documents.document(diagnose(here, good))
    assert said in report["against"]["warnings"][0]
    assert report["against"]["first_divergence"] is None
    assert report["verdict"] == diagnose(here).verdict


# -- divergence -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("onset", [9, 21, 33])
def test_the_onset_is_exact_for_a_shift(onset: int) -> None:
    here = _trace(GOOD | {"entropy": "2.02-0.02x40~-0.02", "grad_norm": f"1x{onset - 1}~-0.1 4x{41 - onset}~0.4"})
    found = compare(here, _trace(GOOD))
    assert _apart(found) == {"grad_norm": onset}
    [one] = [one for one in found.series if one.step]
    assert (one.direction, round(one.ratio or 0)) == (1, 4)


@pytest.mark.parametrize("word", ["nan", "inf", "nonfinite", "masked"])
def test_not_finite_where_the_good_run_is_counts_from_the_first_point(word: str) -> None:
    found = compare(_trace(GOOD | {"grad_norm": f"1x20~0.1 {word}x20"}), _trace(GOOD))
    [one] = [one for one in found.series if one.step]
    assert (one.name, one.step, one.nonfinite, one.value) == ("grad_norm", 21, True, None)


def test_a_spike_that_comes_back_is_no_divergence() -> None:
    assert _apart(compare(_trace(GOOD | {"grad_norm": "1x20~0.1 30x2 1x18~0.1"}), _trace(GOOD))) == {}


def test_what_is_apart_from_the_first_point_on_says_so() -> None:
    found = compare(_trace({"mismatch_logp_abs": "0.03x40~0.002"}), _trace({"mismatch_logp_abs": "0.003x40~0.0003"}))
    [one] = found.series
    assert (one.step, one.start, round(one.ratio or 0)) == (1, True, 10)


def test_two_healthy_seeds_are_quiet() -> None:
    levels = {
        "loss": (3.0, -0.03, 0.05),
        "grad_norm": (1.0, -0.005, 0.1),
        "entropy": (2.0, -0.02, 0.03),
        "reward": (0.1, 0.015, 0.04),
    }
    pairs = [(_noisy(2 * seed, **levels), _noisy(2 * seed + 1, **levels)) for seed in range(50)]
    assert [seed for seed, pair in enumerate(pairs) if _apart(compare(*pair))] == []
    rules = [rule for rule in catalogue() if rule.view == "against"]
    fired = [o.rule.id for here, good in pairs[:10] for o in run(here, rules, compare(here, good)) if o.findings]
    assert fired == []


def test_a_constant_good_run_and_one_point_are_judged_without_error() -> None:
    good = _trace({"loss": "1"})
    [piece] = pieces(good, good, align(good, good), [])
    assert judge(piece.pairs, piece.good).at is None
    assert _apart(compare(_trace({"loss": "1x20 5x20"}), _trace({"loss": "1x40"}))) == {"loss": 21}


@pytest.mark.parametrize("value", ["0x30", "-1x30"])
def test_the_smallest_numbers_are_judged_without_error(value: str) -> None:
    good = _trace({"loss": "5e-324x40"})
    assert _apart(compare(_trace({"loss": f"5e-324x10 {value}"}), good)) == {}


@pytest.mark.parametrize("steps", ["1+1x4", "1+999x4"])
def test_too_few_points_are_said_not_judged(steps: str) -> None:
    here = _trace({"loss": "3x40", "grad_norm": "1x40~0.1"})
    report = documents.document(diagnose(here, _trace({"loss": "9x4", "grad_norm": "1x4~0.1"}, steps=steps)))["against"]
    assert (report["signals"], report["divergences"]) == (0, [])
    assert report["warnings"] == ["too few points to compare (fewer than 5 that both runs have): loss, grad_norm"]


def test_a_noise_that_cannot_be_measured_is_said_and_nothing_of_the_signal_judged() -> None:
    here, good = _trace({"loss": "1x40", "reward": "0.1x40"}), _trace({"loss": "0x40~1.7e308", "reward": "0.1x40"})
    report = documents.document(diagnose(here, good))["against"]
    assert (report["signals"], report["divergences"]) == (1, [])
    assert report["warnings"] == ["noise of the good run not measurable (values too large): loss"]


def test_a_large_finite_value_is_finite() -> None:
    [one] = compare(_trace({"reward": "0x20 1.7e308x20"}), _trace({"reward": "0x40"})).series
    assert (one.step, one.nonfinite, one.value) == (21, False, 1.7e308)


def test_speed_is_reported_apart() -> None:
    found = compare(_trace(GOOD | {"step_time": "9x40"}), _trace(GOOD | {"step_time": "3x40"}))
    assert [(entry["signal"], entry["ratio"]) for entry in found.speed] == [("step_time", 3.0)]
    assert _apart(found) == {}


def test_signals_of_one_run_are_listed_not_judged() -> None:
    found = compare(_trace(GOOD | {"lr": "1x40"}), _trace(GOOD | {"kl_ref": "0.1x40"}))
    assert (found.only_here, found.only_good) == (("lr",), ("kl_ref",))


# -- runs that were one -----------------------------------------------------------------------------------------------
def test_equal_until_a_step_is_exact() -> None:
    found = compare(_trace(GOOD | {"grad_norm": "1x20~0.1 2x20~0.2"}), _trace(GOOD))
    assert (found.identical, found.twin) == (20, (0, 21))
    [norm] = [one for one in found.series if one.name == "grad_norm"]
    assert (norm.twin_value, norm.twin_good) == (2.2, 1.1)


def test_a_fault_from_the_first_step_is_seen_by_the_equal_forward_pass() -> None:
    length = {"response_length": "100+1x40~3"}
    found = compare(_trace(GOOD | length | {"grad_norm": "2x40~0.2"}), _trace(GOOD | length))
    assert (found.identical, found.twin) == (0, (0, 1))
    assert compare(_trace(GOOD | length | {"entropy": "1x40~0.2"}), _trace(GOOD | length)).twin is None


def test_other_seeds_never_were_one() -> None:
    assert (
        compare(_noisy(1, loss=(3, 0, 0.1), entropy=(2, 0, 0.1)), _noisy(2, loss=(3, 0, 0.1), entropy=(2, 0, 0.1))).twin
        is None
    )


@pytest.mark.parametrize(
    ("times", "said", "facts"),
    [
        (2, "2x, about twice", {}),
        (0.5, "0.5x, about half", {}),
        (2**0.5, "1.41x, about the square root of 2", {}),
        (4, "4x, about the context-parallel size, 4", {"parallelism": {"cp": 4}}),
        (8, "8x, about the gradient-accumulation steps, 8", {"hyperparameters": {"gradient_accumulation_steps": 8}}),
        (0.125, "0.125x, about 1 / the data-parallel size, 8", {"parallelism": {"dp": 8}}),
        (1.96, "1.96x, about twice", {}),
        (2.7, "2.7x, no round multiple", {}),
    ],
)
def test_exact_multiples_are_named(times: float, said: str, facts: dict[str, Any]) -> None:
    here = _trace(GOOD | {"grad_norm": f"1x20~0.1 {times!r}x20~{0.1 * times!r}"})
    here.facts |= facts
    found = diagnose(here, _trace(GOOD))
    assert (found.failure_type, found.first_bad_step) == ("wrong_gradient_scale", 21)
    assert said in found.evidence[0].statement


def test_a_count_of_the_run_is_named_before_a_power_of_two() -> None:
    assert multiples({"parallelism": {"dp": 2}})[0].what == "the data-parallel size, 2"


# -- layers and ranks -------------------------------------------------------------------------------------------------
def _layers(wrong: range, much: str, n: int = 6) -> dict[str, dict[str, str]]:
    return {
        str(i): {"act_norm": f"{i + 1}x20~0.1 {much}x20~0.1" if i in wrong else f"{i + 1}x40~0.1"} for i in range(n)
    }


def test_the_lowest_layer_that_went_apart_first_with_those_below_clean() -> None:
    report = documents.document(
        diagnose(_trace(GOOD, layers=_layers(range(3, 6), "60")), _trace(GOOD, layers=_layers(range(0), "")))
    )
    [entry] = report["against"]["layers"]
    assert (entry["signal"], entry["layer"], entry["step"], entry["lower_clean"], entry["apart"], entry["of"]) == (
        "act_norm",
        3,
        21,
        True,
        3,
        6,
    )
    assert "act_norm from layer 3 on, clean below" in text.render([report])


@pytest.mark.parametrize(
    ("wrong", "entry", "said"),
    [
        (range(2, 3), (2, 2), "act_norm in layer 2 only"),
        (range(2, 5), (2, 4), "act_norm in layers 2 to 4"),
        (range(2, 6), (2, None), "act_norm from layer 2 on, clean below"),
        (range(1), (0, 0), "act_norm in layer 0 only"),
        (range(1, 5, 2), (1, None), "act_norm from layer 1 on, clean below"),
    ],
)
def test_the_last_layer_apart_where_those_above_agree(wrong: range, entry: tuple[int, int | None], said: str) -> None:
    pair = _trace(GOOD, layers=_layers(wrong, "60")), _trace(GOOD, layers=_layers(range(0), ""))
    report = documents.document(diagnose(*pair))
    [found] = report["against"]["layers"]
    assert (found["layer"], found["last"]) == entry
    assert said in text.render([report])


def test_the_first_difference_in_a_layer_names_it() -> None:
    pair = _trace(GOOD, layers=_layers(range(2, 3), "60")), _trace(GOOD, layers=_layers(range(0), ""))
    assert "until step 21, where act_norm layer 2 is" in text.render([documents.document(diagnose(*pair))])


def test_all_layers_at_once_are_not_clean_below() -> None:
    report = documents.document(
        diagnose(_trace(GOOD, layers=_layers(range(6), "60")), _trace(GOOD, layers=_layers(range(0), "")))
    )
    assert [(entry["layer"], entry["lower_clean"]) for entry in report["against"]["layers"]] == [(0, False)]


def test_one_rank_among_many() -> None:
    def ranks(of: int | None) -> dict[str, dict[str, str]]:
        return {str(i): {"loss": "2x20~0.02 9x20~0.02" if i == of else "2x40~0.02"} for i in range(8)}

    report = documents.document(diagnose(_trace(GOOD, ranks=ranks(5)), _trace(GOOD, ranks=ranks(None))))
    [entry] = report["against"]["ranks"]
    assert (entry["rank"], entry["step"], entry["apart"], entry["of"]) == (5, 21, 1, 8)
    assert "loss of rank 5 alone among 8" in text.render([report])


# -- settings ---------------------------------------------------------------------------------------------------------
def test_settings_that_explain_the_failure_come_first() -> None:
    here = {
        "precision": {"compute": "fp16"},
        "hyperparameters": {"lr": 1e-5},
        "model": {"layers": 48},
        "seed": 1,
        "origins": {"x": "a"},
    }
    good = {
        "precision": {"compute": "bf16"},
        "hyperparameters": {"lr": 1e-6},
        "model": {"layers": 48.0},
        "seed": 2,
        "origins": {"x": "b"},
    }
    found = differences(here, good)
    assert [setting.key for setting in ranked(found, "loss_scale_collapse")] == [
        "precision.compute",
        "hyperparameters.lr",
    ]
    assert [setting.key for setting in ranked(found, "policy_drift")] == ["hyperparameters.lr", "precision.compute"]
    assert (found[0].here, found[0].good) == ("fp16", "bf16") and found[0].why


@pytest.mark.parametrize(("a", "b"), [(1, "1.0"), (True, "true"), (1e-6, "0.000001"), ("None", None), ("x", "x ")])
def test_one_value_written_in_two_ways_is_no_difference(a: Any, b: Any) -> None:
    assert differences({"k": a}, {"k": b}) == ()


def test_what_only_one_log_shows_and_hostile_nesting_are_no_difference() -> None:
    deep: dict[str, Any] = {"v": 1}
    for _ in range(2000):
        deep = {"d": deep}
    assert differences({"a": 1, "deep": deep}, {"b": 1, "deep": deep}) == ()


# -- large and hostile ------------------------------------------------------------------------------------------------
def test_long_logs_are_thinned_but_not_of_what_is_not_finite() -> None:
    size = 3 * MOST
    here, good = _trace({"loss": f"2x{size - 2}~0.1 nan 2"}), _trace({"loss": f"2x{size}~0.1"})
    [piece] = pieces(here, good, align(here, good), [])
    assert len(piece.pairs) == MOST + 1
    assert sum(pair.here.bad for pair in piece.pairs) == 1


def test_only_the_filled_cells_of_a_column_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {str(i): {"act_norm": "1x28 nan 1" if i else "1x5000"} for i in range(20)}
    here = _trace({}, layers=layers)
    visited: list[int] = []
    cell = Column.cell

    def counted(column: Column, row: int) -> Cell | None:
        visited.append(row)
        return cell(column, row)

    monkeypatch.setattr(Column, "cell", counted)
    found = list(pieces(here, here, align(here, here), []))
    assert [len(piece.pairs) for piece in found] == [5000] + [30] * 19
    assert len(visited) == 2 * (5000 + 19 * 30)


def test_layers_of_a_trace_on_disk_are_read_there_or_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = " UNION ALL ".join(
        f"SELECT 0 AS segment, {step} AS step, NULL::INT AS rank, 3 AS layer, NULL::INT AS expert, NULL::VARCHAR AS module, "
        f"'act_norm' AS signal, {9.0 if step > 20 else 1.0 + step % 2 / 10}::DOUBLE AS value, 'finite' AS state"
        for step in range(1, 41)
    )
    here = _trace(GOOD)
    here.table = rows
    good = _trace(GOOD, layers={"3": {"act_norm": "1x40~0.1"}})
    assert [(one.name, one.layer, one.step) for one in compare(here, good).series if one.step] == [("act_norm", 3, 21)]
    monkeypatch.setattr("faultproxy.analyzer.against.pieces.MOST_ON_DISK", 10)
    found = compare(here, good)
    assert _apart(found) == {} and "not compared: 40 values" in found.warnings[0]


def test_a_good_run_of_nan_is_no_measure_and_no_crash() -> None:
    found = compare(_trace(GOOD), _trace(dict.fromkeys(GOOD, "nanx40")))
    assert {one.name for one in found.series if one.nonfinite} == set(GOOD)
    assert diagnose(_trace(GOOD), _trace(dict.fromkeys(GOOD, "nanx40"))).verdict == "healthy"


def test_log_text_in_the_comparison_is_safe_to_show() -> None:
    here, good = _trace(GOOD), _trace(GOOD | {"grad_norm": "9x40~0.1"})
    here.facts["attention_backend"], good.facts["attention_backend"] = "<img src=x> @oncall \x1b[31m", "a|b `c`"
    good.run, good.sources = "\x1b[2J\u202evil", [Source("x|y`.log", "csv", "0" * 64)]
    report = documents.document(diagnose(here, good))
    assert "\x1b" not in text.render([report]) + markdown.render([report])
    assert "<img" not in markdown.render([report]).replace("`<img src=x> @oncall", "")
    assert json.loads(documents.dumps([report]))["against"]["config"][0]["why"]


# -- the command ------------------------------------------------------------------------------------------------------
def _log(path: Path, norm: float, onset: int = 21, steps: int = 40) -> str:
    lines = []
    for step in range(1, steps + 1):
        swing = 0.1 if step % 2 else -0.1
        value = (1 + swing) * (norm if step >= onset else 1)
        lines.append(
            f"step:{step} - actor/entropy:{2 - 0.02 * step + swing / 5:.4f} - actor/grad_norm:{value:.4f} - critic/rewards/mean:{0.1 + 0.01 * step + swing / 5:.4f} - actor/pg_loss:0.01"
        )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_command_reports_in_every_format(tmp_path: Path) -> None:
    bad, good = _log(tmp_path / "bad.log", 3.0), _log(tmp_path / "good.log", 1.0)
    shown = CliRunner().invoke(analyze, [bad, "--against", good])
    assert shown.exit_code == 0
    assert "good.log: grad_norm first, step 21, 3.00x" in shown.stdout
    assert "equal, number for number, until step 21, where grad_norm is 3x" in shown.stdout
    shown = CliRunner().invoke(analyze, [bad, "--against", good, "--format", "markdown"])
    assert "**Against the good run**" in shown.stdout and "| grad\\_norm | 21 |" in shown.stdout.replace(
        "grad_norm", "grad\\_norm"
    )
    report = json.loads(CliRunner().invoke(analyze, [bad, "--against", good, "--format", "json"]).stdout)
    assert (report["failure_type"], report["against"]["first_divergence"]["signal"]) == (
        "wrong_gradient_scale",
        "grad_norm",
    )
    assert report["against"]["sources"][0]["path"] == good


def test_several_runs_are_compared_with_one(tmp_path: Path) -> None:
    paths = [_log(tmp_path / f"{name}.log", norm) for name, norm in (("a", 2.0), ("b", 1.0))]
    reports = json.loads(
        CliRunner().invoke(analyze, [*paths, "--against", _log(tmp_path / "good.log", 1.0), "--format", "json"]).stdout
    )
    assert [report["verdict"] for report in reports] == ["failed", "healthy"]
    assert {report["against"]["run"] for report in reports} == {"good.log"}


def test_a_good_run_that_failed_is_named_and_used(tmp_path: Path) -> None:
    good = Path(_log(tmp_path / "good.log", 1.0))
    good.write_text(good.read_text().replace("pg_loss:0.01", "pg_loss:nan"))
    report = json.loads(
        CliRunner()
        .invoke(analyze, [_log(tmp_path / "bad.log", 2.0), "--against", str(good), "--format", "json"])
        .stdout
    )
    assert "good.log is no good run: nonfinite_loss at step 1" in report["against"]["warnings"][0]
    assert report["against"]["points"] == 40


@pytest.mark.parametrize("content", ["", "no metric at all\n", "\x00\x01\x02"])
def test_a_good_run_that_cannot_be_read_is_bad_input(tmp_path: Path, content: str) -> None:
    (tmp_path / "good.log").write_text(content)
    ended = CliRunner().invoke(analyze, [_log(tmp_path / "bad.log", 2.0), "--against", str(tmp_path / "good.log")])
    assert isinstance(ended.exception, InputError)


def test_stdin_and_a_folder_of_several_runs_are_refused_with_what_to_do(tmp_path: Path) -> None:
    bad = _log(tmp_path / "bad.log", 2.0)
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        _log(tmp_path / "runs" / name / "run.log", 1.0)
    assert "2 runs in it" in str(CliRunner().invoke(analyze, [bad, "--against", str(tmp_path / "runs")]).exception)
    assert "give a file" in str(CliRunner().invoke(analyze, [bad, "--against", "-"]).exception)


def test_without_a_good_run_the_rules_say_why_and_the_report_has_null() -> None:
    found = diagnose(_trace(GOOD))
    assert {o.reason for o in found.outcomes if o.rule.view == "against"} == {"no good run to compare with: --against"}
    assert documents.document(found)["against"] is None
