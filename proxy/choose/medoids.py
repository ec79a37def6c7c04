"""K-Medoids by FasterPAM (Schubert and Rousseeuw, Information Systems 101, 2021), for up to some thousand points, in numpy.

Eager swaps: candidates are visited in order, again and again, and one that lowers the loss takes the place of the medoid that gains
most, until a whole round finds none. A candidate costs O(points), a round O(points^2). What differs from the paper: points have
weights, and some medoids cannot be swapped out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: A swap must lower the loss by this share of it, so that rounding does not decide.
_GAIN = 1e-9


def k_medoids(distance: Any, start: Sequence[int], fixed: int = 0, weight: Any = None) -> tuple[list[int], float]:
    """Medoids [k] that no single swap improves, and the loss: the sum over points of weight times distance to the nearest medoid.

    `distance` is [n, n] with a zero diagonal; row i is what point i pays. The first `fixed` of the medoids in `start` stay. Equal
    input gives equal output.
    """
    import numpy as np

    d = np.asarray(distance, dtype=np.float64)
    n, k = len(d), len(start)
    if not 0 < k <= n or len(set(start)) != k or not 0 <= fixed <= k or not all(0 <= m < n for m in start):
        raise ValueError(f"{k} different medoids of 0 to {n - 1} are needed, {fixed} of them fixed")
    if weight is not None:
        d = d * np.asarray(weight, dtype=np.float64)[:, None]
    medoids = np.array(start)
    to = d[:, medoids]
    place, near, after, second = _two_nearest(to)
    loss = float(near.sum())
    if fixed == k or k == n:
        return medoids.tolist(), loss
    columns = np.ascontiguousarray(d.T)
    candidate = idle = 0
    while idle < n:
        if candidate not in medoids:
            new = columns[candidate]
            closer = new < near
            # What each medoid's removal costs once the candidate is there, less what points gain that come nearer.
            change = np.bincount(place, np.where(closer, 0.0, np.minimum(new, second) - near), minlength=k)
            change += (new - near)[closer].sum()
            out = fixed + int(change[fixed:].argmin())
            if change[out] < -_GAIN * loss:
                medoids[out], to[:, out] = candidate, new
                moved = (place == out) | (after == out) | (new < second)
                place[moved], near[moved], after[moved], second[moved] = _two_nearest(to[moved])
                loss = float(near.sum())
                idle = 0
        candidate = (candidate + 1) % n
        idle += 1
    return medoids.tolist(), loss


def _two_nearest(to: Any) -> tuple[Any, Any, Any, Any]:
    """The place and distance of each point's nearest medoid, and of its second nearest (infinitely far where there is one medoid)."""
    import numpy as np

    rows = np.arange(len(to))
    place = to.argmin(1)
    rest = to.copy()
    rest[rows, place] = np.inf
    after = rest.argmin(1)
    return place, to[rows, place], after, rest[rows, after]
