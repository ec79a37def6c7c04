"""How unlike the experts of a layer are, in three views, and what each is worth; all [E, E] or [E] of one layer.

Each view is divided by its median, so that none outweighs another by its unit; distances and scores are rounded, so that the order of
additions (threads, BLAS) does not decide a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultproxy.proxy.choose.calibration import Routing

#: Decimals of distances, and significant digits of scores, that count.
_DECIMALS, _DIGITS = 6, 9


def angles(rows: Any) -> Any:
    """Angles between rows as shares of pi."""
    import numpy as np

    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.arccos(np.clip(unit @ unit.T, -1.0, 1.0)) / np.pi


def apart(together: Any, frequency: Any) -> Any:
    """1 minus the tokens two experts share over the geometric mean of their own: 0 for two that always fire together."""
    import numpy as np

    mean = np.outer(np.sqrt(frequency), np.sqrt(frequency))
    return 1.0 - np.clip(together / np.where(mean > 0, mean, 1.0), 0.0, 1.0)


def views(rows: Any, routing: Routing | None) -> dict[str, Any]:
    """The views that there is data for: `router` rows, `together` (co-activation), `context` (prototypes)."""
    found = {} if rows is None else {"router": angles(rows)}
    if routing is not None and routing.together is not None:
        found["together"] = apart(routing.together, routing.frequency)
    if routing is not None and routing.prototype is not None:
        found["context"] = angles(routing.prototype)
    return found


def fuse(found: Mapping[str, Any]) -> Any:
    """The sum of views, each over its median beside the diagonal, which is zero."""
    import numpy as np

    total = 0.0
    for view in found.values():
        beside = view[~np.eye(len(view), dtype=bool)]
        median = float(np.median(beside)) if beside.size else 1.0
        total = total + view / (median if median > 0 else 1.0)
    fused = np.round(total, _DECIMALS)
    np.fill_diagonal(fused, 0.0)
    return fused


def length(rows: Any) -> Any:
    """Length of router rows less their mean: how far an expert's logit can stand out from the others'."""
    import numpy as np

    return np.linalg.norm(rows - rows.mean(0), axis=1)


def steady(score: Any) -> Any:
    """A score without the digits that rounding makes."""
    import numpy as np

    most = float(np.max(np.abs(score), initial=0.0))
    return np.round(score / most, _DIGITS) if most > 0 else np.zeros(len(score))
