"""Fuses findings into one diagnosis: verdict, failure type, factor with path, causes, candidates, and what was not judged.

The scheme, simple and monotone on purpose (docs/diagnosis.md has an example worked by hand):

1. Findings with role `root` are ordered by onset; onsets within TIE rows of the earliest count as one moment, and there
   the family decides (process, numerics, routing, policy, optimisation), then the forward pass before the backward;
   how the process ended (crash, hang, slowdown) comes behind the numerics. The first is the root; later ones are
   consequences. Weak findings (strength below WEAK) cannot be root beside strong ones. A failure that a restart left
   behind is benign, and the first sign of a fault is evidence of it.
2. A type's support s = 1 - prod(1 - strength) over its findings; support findings that name the type count half.
   Odds s / (1 - s), times CONSEQUENCE for types that follow from the root; the odds of "none of these" are NONE.
   Probabilities are the odds over their sum. Raising one strength never lowers its type's probability.
3. A factor's vote is 1 - prod(1 - vote * strength) over the root's and its supporting findings. A factor is claimed
   only from CLAIM on and with a MARGIN over the next; else `none` when the votes say so, else `undetermined`.
   Where routers flip because of another factor, the path goes on to routing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.advice import next_checks, not_judged
from faultproxy.analyzer.catalogue import FACTORS, FAILURE_TYPES, FAMILY_OF
from faultproxy.analyzer.engine import Finding, Outcome, run
from faultproxy.analyzer.trace import Trace

if TYPE_CHECKING:
    from faultproxy.analyzer.against import Comparison

TIE = 1  # rows; two signals of one event may be logged a row apart
WEAK = 0.5
LATE = 5  # rows; a support that begins later than this after the root is what came of it
NONE = 0.2  # odds that a rule fired and no failure of the catalogue happened
CONSEQUENCE = 0.15
CLAIM, MARGIN = 0.45, 0.15
#: What the rules that only know the type say of the cause, together, beside a rule that knows the factor of this run.
GENERAL = 0.5
#: Who is the root within one moment, first to last. In the first three lines the order inside counts too: a cause before
#: its echo, the forward pass before the backward, a collapsing scale (it skips the steps) before the gradient that the
#: scaler saw. How a run ended is not why, so endings come behind the numerics. In the other families strength decides.
_TIERS: tuple[tuple[str, ...], ...] = (
    ("hardware_fault", "out_of_memory", "data_fault", "config_error", "resume_mismatch"),
    ("nonfinite_loss", "loss_scale_collapse", "nonfinite_gradient", "gradient_explosion", "zero_gradient", "wrong_gradient_scale"),
    ("hang", "crash", "slowdown"),
    FAILURE_TYPES["routing"],
    FAILURE_TYPES["policy"],
    FAILURE_TYPES["optimisation"],
)  # fmt: skip
_ORDERED_TIERS, _ENDINGS = 3, _TIERS[2]
#: Where one of these is found anywhere in the run, an ending is what followed: one rank dies, the others wait for it.
_CULPRITS = ("hardware_fault", "out_of_memory", "data_fault")
#: Rows without a failure after the last restart that show that it worked.
_RECOVERED = 20
#: One of these with a few usable rows is the least that can be called healthy.
_CORE = (
    "loss",
    "grad_norm",
    "reward",
    "score",
    "policy_loss",
    "kl_ref",
    "entropy",
    "mismatch_kl",
    "mismatch_k3",
    "mismatch_prob_diff",
    "mismatch_logp_abs",
    "eval_loss",
    "value_loss",
    "reward_margin",
    "accuracy",
)
_HEALTHY_ROWS = 50


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one trace shows. Field meanings are those of JSON v1 (docs/report.md)."""

    trace: Trace
    outcomes: tuple[Outcome, ...]
    verdict: str
    failure_type: str | None
    factor: str
    path: tuple[str, ...]
    confidence: float
    factor_confidence: float
    causes: tuple[tuple[str, float], ...]
    #: Why each cause is one, by the heaviest rule that names it.
    reasons: dict[str, str]
    candidates: tuple[tuple[str, str, float], ...]
    evidence: tuple[Finding, ...]
    first_bad_step: int | None = None
    segment: int | None = None
    rank: int | None = None
    layer: int | None = None
    expert: int | None = None
    not_judged: tuple[dict[str, Any], ...] = ()
    next_checks: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = field(default=())
    against: Comparison | None = None

    @property
    def family(self) -> str | None:
        """Family of the failure type; `none` when healthy, null when inconclusive."""
        if self.failure_type is None:
            return None
        return FAMILY_OF.get(self.failure_type, "none")


def diagnose(trace: Trace, good: Trace | None = None) -> Diagnosis:
    """Run the catalogue over a trace and fuse what it finds; `good` is a run that went well, to compare with."""
    if good is None:
        return fuse(trace, run(trace))
    from faultproxy.analyzer.against import compare

    comparison = compare(trace, good)
    return replace(fuse(trace, run(trace, against=comparison)), against=comparison)


def fuse(trace: Trace, outcomes: list[Outcome]) -> Diagnosis:
    """Fuse rule outcomes; pure, so that tests and `--against` can feed their own."""
    findings = _subsume([finding for outcome in outcomes for finding in outcome.findings])
    findings = _restarted(findings, trace)
    roots = [f for f in findings if f.role == "root" and f.failure_type]
    warnings = [*trace.warnings, *(f"rule {o.rule.id} failed: {o.reason}" for o in outcomes if o.status == "error")]
    blind = not_judged(trace, outcomes)
    if not roots:
        return _without_failure(trace, outcomes, findings, blind, warnings)
    moment = _clock(trace)
    ordered = _ordered(roots, moment)
    root = ordered[0]
    assert root.failure_type is not None
    supporting = [
        f
        for f in findings
        if f.role == "support"
        and root.failure_type in f.supports
        and f.segment == root.segment
        and (f.step_start is None or root.step_start is None or moment(f) <= moment(root) + LATE)
    ]
    evidence = [
        replace(f, role="root") for f in (*(f for f in ordered if f.failure_type == root.failure_type), *supporting)
    ]
    evidence += [replace(f, role="consequence") for f in ordered if f.failure_type != root.failure_type]
    evidence += [f for f in findings if f.role == "benign"]
    probabilities = _probabilities(ordered, root, supporting)
    about = [f for f in ordered if f.failure_type == root.failure_type] + supporting
    factor, factor_confidence = _factor(about)
    causes, reasons = _causes(about, factor)
    same = [f for f in ordered if f.failure_type == root.failure_type and f.segment == root.segment]
    return Diagnosis(
        trace=trace,
        outcomes=tuple(outcomes),
        verdict="failed",
        failure_type=root.failure_type,
        factor=factor,
        path=_path(factor, [*about, *ordered]),
        confidence=probabilities[root.failure_type],
        factor_confidence=factor_confidence,
        causes=causes,
        reasons=reasons,
        candidates=tuple(
            (t, factor if t == root.failure_type else "undetermined", p)
            for t, p in sorted(probabilities.items(), key=lambda e: -e[1])
        ),
        evidence=tuple(evidence),
        first_bad_step=min(
            (f.step_start for f in same if f.step_start is not None and moment(f) <= moment(root) + TIE),
            default=root.step_start,
        ),
        segment=root.segment,
        rank=next((f.rank for f in about if f.rank is not None), None),
        layer=next((f.layer for f in about if f.layer is not None), None),
        expert=next((f.expert for f in about if f.expert is not None), None),
        not_judged=blind,
        next_checks=next_checks(root.failure_type, causes),
        warnings=tuple(warnings),
    )


#: The first sign of a larger fault is evidence of that fault, not a fault beside it: (sign, fault).
_FIRST_SIGNS = (("loss_spike", "loss_divergence"),)


def _subsume(findings: list[Finding]) -> list[Finding]:
    """Turn a first sign into evidence of the fault that it became, in the same segment and not after its end."""
    held = {(f.failure_type, f.segment): f.step_end for f in findings if f.role == "root"}
    found = []
    for finding in findings:
        for sign, fault in _FIRST_SIGNS:
            end = held.get((fault, finding.segment))
            if finding.failure_type == sign and end is not None and (finding.step_start or 0) <= end:
                finding = replace(finding, failure_type=fault, strength=0.5 * finding.strength)
        found.append(finding)
    return found


def _restarted(findings: list[Finding], trace: Trace) -> list[Finding]:
    """A failure that a restart left behind is benign, as a spike that recovered is: the last segment is what the run became.

    Only when that segment is long enough to show it and nothing failed in it; segments that are runs of their own
    (a table with a run column) are each judged.
    """
    segments = trace.frame.segments
    last = max(segments, default=0)
    failed = any(f.role == "root" and f.segment == last for f in findings)
    if not last or failed or trace.facts.get("segments_are_runs") or segments.count(last) < _RECOVERED:
        return findings
    return [replace(f, role="benign", failure_type=None) if f.role == "root" else f for f in findings]


# -- order ------------------------------------------------------------------------------------------------------------
def _clock(trace: Trace) -> Callable[[Finding], float]:
    """Maps a finding to the row position of its onset over the whole trace; the end for findings without a step."""
    frame = trace.frame
    order = sorted(zip(frame.segments, frame.steps, strict=True))
    rows = {key: float(at) for at, key in enumerate(order)}
    end = float(len(order))
    return lambda finding: (
        rows.get((finding.segment, finding.step_start), end) if finding.step_start is not None else end
    )


def _ordered(roots: list[Finding], moment: Callable[[Finding], float]) -> list[Finding]:
    """Root candidates, the root first (scheme 1 above)."""
    strong = [f for f in roots if f.strength >= WEAK]
    earliest = min(moment(f) for f in strong or roots)

    culprit = any(f.failure_type in _CULPRITS for f in roots)

    def key(finding: Finding) -> tuple[bool, float, int, int, float, float]:
        at = moment(finding)
        kind = str(finding.failure_type)
        tier = next(n for n, kinds in enumerate(_TIERS) if kind in kinds)
        return (
            bool(strong) and finding.strength < WEAK or culprit and kind in _ENDINGS,
            0.0 if at <= earliest + TIE else at,
            tier,
            _TIERS[tier].index(kind) if tier < _ORDERED_TIERS else 0,
            -finding.strength,
            at,
        )

    return sorted(roots, key=key)


# -- probabilities ----------------------------------------------------------------------------------------------------
def _any(values: Iterable[float]) -> float:
    """Noisy-or: 1 - prod(1 - v), kept below 1 so that odds stay finite."""
    left = 1.0
    for value in values:
        left *= 1.0 - value
    return min(1.0 - left, 0.995)


def _probabilities(ordered: list[Finding], root: Finding, supporting: list[Finding]) -> dict[str, float]:
    strengths: dict[str, dict[str, float]] = defaultdict(dict)
    for finding in ordered:
        held = strengths[str(finding.failure_type)]
        held[finding.rule] = max(
            held.get(finding.rule, 0.0), finding.strength
        )  # one rule is one witness, however often
    odds = {}
    for kind, by_rule in strengths.items():
        values = list(by_rule.values()) + ([0.5 * f.strength for f in supporting] if kind == root.failure_type else [])
        support = _any(values)
        odds[kind] = support / (1.0 - support) * (1.0 if kind == root.failure_type else CONSEQUENCE)
    total = sum(odds.values()) + NONE
    found = {kind: value / total for kind, value in odds.items()}
    top = max(found.values())
    if found[str(root.failure_type)] < top:  # the root stays the first candidate: precedence, not strength, chose it
        found[str(root.failure_type)], swap = top, found[str(root.failure_type)]
        found[max((k for k in found if k != root.failure_type), key=lambda k: found[k])] = swap
    return {kind: round(value, 4) for kind, value in found.items()}


def _factor(about: list[Finding]) -> tuple[str, float]:
    votes: dict[str, list[float]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for finding in about:
        for factor, vote in finding.votes.items():
            if (finding.rule, factor) not in seen:
                seen.add((finding.rule, factor))
                votes[factor].append(vote * finding.strength)
    weight = {factor: _any(votes.get(factor, ())) for factor in FACTORS}
    ranked = sorted(weight.items(), key=lambda e: -e[1])
    (best, top), (_, second) = ranked[0], ranked[1]
    if top >= CLAIM and top - second >= MARGIN:
        share = top / (sum(weight.values()) or 1.0)
        return best, round(top * share, 4)
    return "undetermined", round(1.0 - top, 4)


def _path(factor: str, found: list[Finding]) -> tuple[str, ...]:
    """The claimed factor and, where it is another's fault that routers flipped, the routing through which it acts."""
    if factor not in ("depth", "routing", "precision"):
        return ()
    flipped = any(f.family == "routing" and "routing" not in f.votes for f in found)
    return (factor, "routing") if flipped and factor != "routing" else (factor,)


def _causes(about: list[Finding], factor: str) -> tuple[tuple[tuple[str, float], ...], dict[str, str]]:
    rules = {f.rule: f for f in about if not f.votes or factor == "undetermined" or factor in f.votes}.values()
    plain = [f for f in rules if not f.votes]
    share = GENERAL / len(plain) if plain and len(plain) < len(rules) and factor != "undetermined" else 1.0
    total: dict[str, float] = defaultdict(float)
    heaviest: dict[str, tuple[float, str]] = {}
    for finding in rules:
        for cause, weight in finding.causes.items():
            vote = weight * finding.strength * (1.0 if finding.votes else share)
            total[cause] += vote
            if cause in finding.why and vote > heaviest.get(cause, (0.0, ""))[0]:
                heaviest[cause] = vote, finding.why[cause]
    total["unknown"] += 0.1
    whole = sum(total.values())
    ranked = sorted(((cause, round(weight / whole, 4)) for cause, weight in total.items()), key=lambda e: -e[1])
    return tuple(ranked), {cause: why for cause, (_, why) in heaviest.items()}


# -- no failure found -------------------------------------------------------------------------------------------------
def _without_failure(
    trace: Trace,
    outcomes: list[Outcome],
    findings: list[Finding],
    blind: tuple[dict[str, Any], ...],
    warnings: list[str],
) -> Diagnosis:
    judged = sum(o.status == "clean" and o.rule.view != "events" for o in outcomes)
    core = {
        key.signal
        for key, column in trace.frame.columns.items()
        if key.signal in _CORE and any(v is not None for v in column.values)
    }
    rows = len(trace.frame)
    completed = any(event.kind == "completed" for event in trace.events)
    seen = bool(core) and (rows >= 2 or len(core) >= 3) or (completed and rows >= 2)
    whole = not any(o.status == "error" for o in outcomes)  # a rule that could not run might have found the fault
    enough = seen and whole
    reach = min(1.0, rows / _HEALTHY_ROWS)
    breadth = min(1.0, (len(core) + judged / 8) / 4)
    confidence = round(0.45 + 0.5 * reach * breadth, 4) if enough else 0.0
    if not seen:
        warnings = [
            *warnings,
            "too little in this trace to call it healthy: no loss, reward, or gradient signal over at least two steps",
        ]
    elif not whole:
        warnings = [*warnings, "not called healthy: a rule could not run on this trace (see the warning above)"]
    return Diagnosis(
        trace=trace,
        outcomes=tuple(outcomes),
        verdict="healthy" if enough else "inconclusive",
        failure_type="healthy" if enough else None,
        factor="none" if enough else "undetermined",
        path=(),
        confidence=confidence,
        factor_confidence=confidence,
        causes=(),
        reasons={},
        candidates=(("healthy", "none", confidence),) if enough else (),
        evidence=tuple(f for f in findings if f.role == "benign"),
        not_judged=blind,
        warnings=tuple(warnings),
    )
