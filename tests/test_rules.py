"""The catalogue's proof: every case of every rule, the notation they are written in, and the corpus checks."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from faultproxy.analyzer import catalogue_checks, rulecases
from faultproxy.analyzer.catalogue import catalogue, hashes
from faultproxy.analyzer.commands.rules import rules as rules_command
from faultproxy.analyzer.errors import InputError, RuleError
from faultproxy.analyzer.rulecases import series, trace
from faultproxy.analyzer.trace import Cell

CASES = [
    pytest.param(case, id=case.id, marks=[pytest.mark.xfail(strict=True, reason="known gap")] if case.todo else [])
    for case in rulecases.all_cases()
]


@pytest.mark.parametrize("case", CASES)
def test_case(case):
    assert rulecases.problem(case) is None


@pytest.mark.parametrize("check", catalogue_checks.CHECKS, ids=lambda check: check.__name__)
def test_the_catalogue_holds(check):
    assert list(check(catalogue())) == []


# -- notation ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [1.0]),
        ("1x3", [1.0, 1.0, 1.0]),
        ("1 20x2 -1.5", [1.0, 20.0, 20.0, -1.5]),
        ("1+0.5x3", [1.0, 1.5, 2.0]),
        ("2-0.5x3", [2.0, 1.5, 1.0]),
        ("1e-5x2", [1e-5, 1e-5]),
        ("0+1e-6x3", [0.0, 1e-6, 2e-6]),
        ("2x3~0.5", [2.5, 1.5, 2.5]),
        ("", []),
    ],
)
def test_notation_of_numbers(text, expected):
    assert [cell.value for cell in series(text)] == pytest.approx(expected)
    assert {cell.state for cell in series(text)} <= {"finite"}


def test_notation_of_states():
    cells = series("nanx2 inf -inf nonfinite absent masked quantised0 _x2")
    assert [cell.state if cell else None for cell in cells] == [
        "nan", "nan", "pos_inf", "neg_inf", "nonfinite", "absent", "masked", "quantised", None, None,
    ]  # fmt: skip
    assert cells[7] == Cell(0.0, "quantised")
    assert [cell.value for cell in cells[:7] if cell] == [None] * 7


@pytest.mark.parametrize("text", ["1y3", "foo", "1xx3", "1x", "nan~1x", "NaN", "1+x3", "infx-2"])
def test_bad_notation_names_the_word_and_what_is_allowed(text):
    with pytest.raises(RuleError, match="is not VALUExCOUNT"):
        series(text)


@pytest.mark.parametrize(
    "name", ["critic_grad_norm", "eval_loss", "reward_max", "advantage_min", "critic_value_loss", "reward_std"]
)
def test_a_series_gets_the_key_of_its_column_name(name):
    assert trace({"series": {name: "1"}}).frame.columns.popitem()[0].column == name


def test_an_unknown_series_is_an_error():
    with pytest.raises(RuleError, match="'grad_nrom' is no column"):
        trace({"series": {"grad_nrom": "1"}})


def test_an_unknown_key_is_an_error():
    with pytest.raises(RuleError, match="unknown key serie in a case; allowed are"):
        trace({"serie": {"loss": "1"}})


def test_steps_and_segments_must_fit_the_values():
    with pytest.raises(RuleError, match="3 rows of values, 2 steps"):
        trace({"series": {"loss": "1x3"}, "steps": "1+1x2"})


def test_steps_and_segments():
    built = trace({"series": {"loss": "1x3"}, "steps": "100+10x2 1", "segment": "0x2 1"})
    assert (built.frame.steps, built.frame.segments) == ([100, 110, 1], [0, 0, 1])


def test_one_event_entry_may_be_many():
    built = trace({"events": [{"kind": "overflow", "step": 7, "value": "4 2 1"}]})
    assert [(event.step, event.value) for event in built.events] == [(7, 4.0), (7, 2.0), (7, 1.0)]


def test_detail_series():
    body = {
        "ranks": {"2": {"loss": "1"}},
        "layers": {"5": {"moe_max_vio": "1"}},
        "modules": {"moe[1]": {"moe_max_vio": "1"}},
    }
    assert [(key.rank, key.layer, key.module) for key in trace(body).detail.columns] == [
        (None, 5, None), (2, None, None), (None, None, "moe[1]"),
    ]  # fmt: skip


def test_a_case_without_values_was_read_from_nothing():
    assert trace({}).sources == []


# -- the lock ---------------------------------------------------------------------------------------------------------
def _changed(**fields):
    rule = replace(catalogue()[0], **fields)
    return rule, {rule.id: (1, "0" * 64)}


def test_lock_refuses_a_change_without_a_new_version():
    rule, held = _changed(version=1)
    with pytest.raises(InputError, match=f"changed without a new version: {rule.id}"):
        catalogue_checks.new_lock([rule], held)


def test_lock_takes_a_change_with_a_new_version():
    rule, held = _changed(version=2)
    assert catalogue_checks.new_lock([rule], held) == f"{rule.id} 2 {hashes()[rule.id]}\n"


@pytest.mark.parametrize(("status", "taken"), [("preview", True), ("stable", False)])
def test_same_version_is_for_preview_rules(status, taken):
    rule, held = _changed(version=1, status=status)
    if taken:
        assert catalogue_checks.new_lock([rule], held, same_version=True)
    else:
        with pytest.raises(InputError):
            catalogue_checks.new_lock([rule], held, same_version=True)


# -- the checks see what they are for ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("check", "change", "said"),
    [
        ("ids", {"id": "numerics/zero_gradient"}, "is not its path"),
        ("words", {"view": "trace"}, "view 'trace' is none of train, "),
        ("words", {"votes": {"width": 0.5}}, "votes 'width' is none of depth, routing, precision, none"),
        ("roles", {"failure_type": None}, "a root rule, and only a root rule"),
        ("probabilities", {"causes": {"data": 0.7, "config": 0.7}}, "causes sum to 1.4"),
        ("texts", {"title": ""}, "title is empty"),
        ("params", {"tables": "[text]"}, "is no parameter"),
        ("reasons", {"tables": "[text]"}, "every vote and cause has a reason"),
        (
            "columns_declared",
            {"optional": ("lr", "perplexity")},
            "column perplexity is declared but the query does not read it",
        ),
        ("columns_declared", {"columns": ("gradient",)}, "column gradient is no signal"),
        ("queries", {"optional": ()}, "columns it may read: grad_norm"),
        ("queries", {"sql": "SELECT 1 AS step"}, "the first columns are step"),
        ("guards", {"guard": "grad_nrom = 0"}, "guard 'grad_nrom = 0'"),
    ],
)
def test_a_check_names_the_fault(check, change, said):
    [rule] = [rule for rule in catalogue() if rule.id == "numerics/zero-gradient"]
    found = list(getattr(catalogue_checks, check)([replace(rule, **change)]))
    assert any(said in sentence for sentence in found), found


# -- commands ---------------------------------------------------------------------------------------------------------
def _run(*arguments):
    return CliRunner().invoke(rules_command, arguments)


def test_list_has_a_line_a_rule_below_its_head():
    lines = _run("list").output.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [rule.id for rule in catalogue()]


def test_explain_is_an_article():
    said = _run("explain", "numerics/zero-gradient").output
    for part in ("What it is not.", "What to do.", "hold = 3 rows: one empty batch is no failure", "Sources."):
        assert part in said


def test_explain_suggests_the_nearest_id():
    with pytest.raises(InputError, match="did you mean numerics/zero-gradient"):
        raise _run("explain", "zero-gradient").exception


def test_test_of_one_rule_passes():
    done = _run("test", "policy/length-runaway")
    assert (done.exit_code, done.output.splitlines()[-1].endswith("0 wrong")) == (0, True)


def test_test_without_cases_says_where_they_are(monkeypatch):
    monkeypatch.setattr(rulecases, "cases", lambda rule: [])
    with pytest.raises(InputError, match="clone the repository"):
        raise _run("test").exception
