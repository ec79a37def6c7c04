"""The JSON document of a diagnosis, schema 1 (docs/report.md; `diagnosis-v1.schema.json` beside this file)."""

from __future__ import annotations

import os
import re
import shlex
from math import isfinite
from typing import Any

from faultproxy import __version__
from faultproxy.analyzer.catalogue import fingerprint
from faultproxy.analyzer.diagnose import Diagnosis
from faultproxy.analyzer.engine import Finding
from faultproxy.analyzer.report.clean import encodable
from faultproxy.analyzer.report.text import REPEAT
from faultproxy.analyzer.schema import COPY

SCHEMA = 1
#: Candidates below this probability are noise and are left out.
_LEAST = 0.01
_CONTROLS = re.compile(r"[\x7f-\x9f]")


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Build the JSON v1 object of one diagnosis; plain values only, ready for any serialiser."""
    trace = diagnosis.trace
    frame = trace.frame
    layers = {key.layer for key in trace.detail.columns if key.layer is not None}
    experts = {key.expert for key in trace.detail.columns if key.expert is not None}
    ranks = {key.rank for key in trace.detail.columns if key.rank is not None}
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": "faultproxy", "version": __version__, "rules": fingerprint(), "model": None},
        "run": {
            "id": trace.run,
            "sources": [
                {
                    "path": s.path,
                    "format": s.format,
                    "sha256": s.sha256,
                    "rows": s.rows,
                    "unparsed": s.unparsed,
                    "truncated": s.truncated,
                }
                for s in trace.sources
            ],
            "framework": trace.facts.get("framework"),
            "steps": len(set(zip(frame.segments, frame.steps, strict=True))),
            "first_step": min(frame.steps, default=None),
            "last_step": max(frame.steps, default=None),
            "ranks": len(ranks) if ranks else (1 if len(frame) else None),
            "layers": _stated(trace.facts, "layers") or len(layers) or None,
            "experts": _stated(trace.facts, "experts") or len(experts) or None,
            "facts": dict(trace.facts),
        },
        "verdict": diagnosis.verdict,
        "failure_type": diagnosis.failure_type,
        "family": diagnosis.family,
        "factor": diagnosis.factor,
        "path": list(diagnosis.path),
        "confidence": diagnosis.confidence,
        "factor_confidence": diagnosis.factor_confidence,
        "causes": [
            {"cause": cause, "probability": probability, "why": diagnosis.reasons.get(cause)}
            for cause, probability in diagnosis.causes
        ],
        "first_bad_step": diagnosis.first_bad_step,
        "segment": diagnosis.segment,
        "rank": diagnosis.rank,
        "layer": diagnosis.layer,
        "expert": diagnosis.expert,
        "candidates": [
            {"failure_type": t, "factor": f, "probability": p} for t, f, p in diagnosis.candidates if p >= _LEAST
        ],
        "prediction_set": _prediction_set(diagnosis),
        "evidence": [_evidence(finding) for finding in diagnosis.evidence],
        "not_judged": [dict(entry) for entry in diagnosis.not_judged],
        "next_checks": [dict(entry) for entry in diagnosis.next_checks],
        "proxy": None,
        "reproduce": _reproduce(diagnosis),
        "against": _against(diagnosis),
        "unrecognised": list(trace.unrecognised),
        "warnings": list(diagnosis.warnings),
    }
    plain: dict[str, Any] = _plain(found)
    return plain


def _stated(facts: dict[str, Any], name: str) -> int | None:
    """A number of the model as its configuration states it, where one is known."""
    model = facts.get("model")
    value = model.get(name) if isinstance(model, dict) else None
    return value if type(value) is int and value > 0 else None


def _against(diagnosis: Diagnosis) -> dict[str, Any] | None:
    if diagnosis.against is None:
        return None
    from faultproxy.analyzer.against.summary import section

    return section(diagnosis.against, diagnosis.failure_type)


def dumps(documents: list[dict[str, Any]]) -> str:
    """JSON text of one document, or an array of several. DEL and C1 controls are escaped too: terminals act on them."""
    import orjson

    found = documents[0] if len(documents) == 1 else documents
    text = orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n"
    return _CONTROLS.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def _prediction_set(diagnosis: Diagnosis, mass: float = 0.9) -> list[list[str]]:
    """Smallest set of (type, factor) whose probabilities reach `mass`; all candidates when they do not."""
    chosen, total = [], 0.0
    for kind, factor, probability in diagnosis.candidates:
        if total >= mass or probability < _LEAST:
            break
        chosen.append([kind, factor])
        total += probability
    return chosen


def _evidence(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "signal": finding.signal,
        "step_start": finding.step_start,
        "step_end": finding.step_end,
        "segment": finding.segment,
        "rank": finding.rank,
        "layer": finding.layer,
        "expert": finding.expert,
        "observed": finding.observed,
        "expected": finding.expected,
        "role": finding.role,
        "statement": finding.statement,
        "next_step": finding.next_step,
        "source": finding.source,
        "line": finding.line,
    }


def _reproduce(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """Commands that exist today and need nothing but the files that were read."""
    sources = [source for source in diagnosis.trace.sources if source.format != COPY]
    # A canonical trace names the files it was made from too; they may be gone, so it stands for them.
    paths = [s.path for s in [s for s in sources if s.format.startswith("canonical")] or sources]
    if not paths or "stdin" in paths:
        return []
    target = paths[0] if len(paths) == 1 else os.path.commonpath(paths)
    return [{"title": REPEAT, "command": f"analyze {_argument(target)} --format json"}]


def _argument(path: str) -> str:
    return shlex.quote(path if not path.startswith("-") else f"./{path}")


def _plain(value: Any) -> Any:
    """The document with what strict JSON cannot hold replaced: non-finite facts by null, lone surrogates in paths by `?`."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {encodable(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
