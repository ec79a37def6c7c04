"""What three writers put in the place of a number that was not finite and no reader can recover: said where it matters.

OpenRLHF prints a gradient norm of 0.0 where the engine gave none; TRL drops NaNs before it averages; NeMo-RL removes
infinities from the extremes of the probability ratio and writes -1.0 where nothing is left. A warning is given only
where the run shows the sentinel, or a number beside it that was not finite.

A number that is not finite under a name that means nothing here is said too: no rule judges it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faultproxy.analyzer.trace import BAD_STATES, Column, Frame
from faultproxy.analyzer.vocabulary import resolve

_RATIOS = ("probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped_min", "probs_ratio_clamped_max")
_CORE = ("loss", "policy_loss", "grad_norm")
#: Names that one warning lists.
_NAMED = 3


def unrecoverable(frame: Frame, facts: dict[str, Any]) -> Iterator[str]:
    """One sentence for each such loss that this file's rows show."""
    by_key = {column.raw_key: column for column in frame.columns.values()}
    openrlhf = (
        facts.get("framework") == "openrlhf"
        or "vllm_kl" in by_key
        or {"actor_grad_norm", "policy_loss"} <= by_key.keys()
    )
    for key in ("actor_grad_norm", "critic_grad_norm", "grad_norm") if openrlhf else ():
        zeros = _where(frame, by_key.get(key), 0.0)
        if zeros:
            yield f"{key} is exactly 0 in {len(zeros)} rows (first at step {zeros[0]}); OpenRLHF prints 0.0 where the engine gave no norm, so it proves neither a zero nor a finite gradient"
    if facts.get("trainer") == "trl" or "frac_reward_zero_std" in by_key:
        bad = sorted(
            row
            for column in by_key.values()
            for row, state in column.states.items()
            if state in BAD_STATES and column.key.signal not in _CORE
        )
        if bad:
            yield f"TRL drops NaNs before it averages: metrics that stay finite from step {frame.steps[bad[0]]} on may be means of the finite part only"
    for name in _RATIOS:
        column = next((c for key, c in by_key.items() if key.rpartition("/")[2] == name), None)
        gone = _where(frame, column, -1.0)
        if gone:
            yield f"{name} is -1.0 in {len(gone)} rows (first at step {gone[0]}): NeMo-RL removed infinities and nothing was left; smaller extremes elsewhere may hide one too"
    unknown = [
        (min(bad), key)
        for key, column in by_key.items()
        if key
        and (bad := [row for row, state in column.states.items() if state in BAD_STATES])
        and not resolve(key).listed
    ]
    if unknown:
        named = ", ".join(f"{key} (from step {frame.steps[row]})" for row, key in sorted(unknown)[:_NAMED])
        more = f", and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        yield f"not finite under a name that no rule judges: {named}{more}"


def _where(frame: Frame, column: Column | None, value: float) -> list[int]:
    """The steps at which a column holds exactly this number."""
    return [frame.steps[row] for row, held in enumerate(column.values) if held == value] if column else []
