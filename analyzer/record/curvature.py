"""Curvature of the loss: the top eigenvalue of its Hessian, and the curvature along the last update.

Hessian-vector products by a second backward pass (Pearlmutter, "Fast exact multiplication by the Hessian", Neural
Computation 6(1), 1994); power iteration that goes on from the vector of the last call (LeCun, Simard and Pearlmutter,
NIPS 1992), since the top eigenvector turns slowly while training. Above 2 / learning rate plain gradient descent is
unstable (Cohen et al., arXiv:2103.00065). Sharpness along the update: Pan and Li, arXiv:2306.00204.
The loss needs a double backward, so attention must be eager: fused kernels have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

Vector = list[Tensor]


def top_eigenvalue(
    loss_fn: Callable[[], Tensor], params: Sequence[Tensor], state: dict[str, Any], iterations: int = 2
) -> tuple[float, float | None]:
    """The Hessian's eigenvalue of largest magnitude (Rayleigh quotient), and u'Hu / |u|^2; in units of the loss.

    `loss_fn` gives the loss as a scalar, on the same few sequences at every call. `state` is the caller's, empty at first: it
    keeps the vector (`state["vector"]`), and where it holds `state["update"]`, a tensor a parameter, u is that, else the
    gradient. The second number is None where u is zero. `.grad` and the global random state stay as they are.
    """
    with torch.enable_grad():
        grads = torch.autograd.grad(loss_fn(), params, create_graph=True, materialize_grads=True)
    vector = state.get("vector") or _random(params)
    top = vector[0].new_zeros(())
    for _ in range(iterations):
        product = _hessian_times(grads, params, vector)
        top = _dot(vector, product)
        norm = _dot(product, product).sqrt()
        # A zero or broken product has no direction: the old one stays.
        scale = torch.where(norm.isfinite() & (norm > 0), 1.0 / norm, 0.0)
        vector = [torch.where(scale > 0, p.nan_to_num() * scale, v) for p, v in zip(product, vector, strict=True)]
    state["vector"] = vector
    along = [u.detach() for u in state.get("update") or grads]
    bent = _dot(along, _hessian_times(grads, params, along))
    eigenvalue, numerator, square = torch.stack([top, bent, _dot(along, along)]).tolist()
    return eigenvalue, numerator / square if square and isfinite(square) else None


def _hessian_times(grads: Sequence[Tensor], params: Sequence[Tensor], vector: Vector) -> Vector:
    """H v. A gradient that does not depend on the parameters adds nothing."""
    curved = [(g, v) for g, v in zip(grads, vector, strict=True) if g.requires_grad]
    if not curved:
        return [torch.zeros_like(p) for p in params]
    outputs, weights = zip(*curved, strict=True)
    return list(torch.autograd.grad(outputs, params, weights, retain_graph=True, materialize_grads=True))


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def _random(params: Sequence[Tensor]) -> Vector:
    """A unit vector from a generator of its own."""
    generator = torch.Generator().manual_seed(0)
    vector = [torch.randn(p.shape, generator=generator).to(p) for p in params]
    norm = _dot(vector, vector).sqrt()
    return [part / norm for part in vector]
