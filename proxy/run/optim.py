"""Optimisers by name: AdamW and SGD of torch, and Muon for the matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.run.config import OPTIMISERS, Program

#: Coefficients of the quintic Newton-Schulz iteration (K. Jordan, Muon, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices, also for banks of experts [E, out, in], each matrix on its own.

    Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), 5 Newton-Schulz steps,
    Nesterov momentum, update scaled by sqrt(max(1, rows / columns)).
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        """`lr` is in units of an orthogonal matrix, so some 20 to 100 times that of AdamW."""
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; parameters of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                moment = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                moment.mul_(group["momentum"]).add_(parameter.grad)
                by_shape.setdefault(parameter.shape, []).append(
                    (parameter, parameter.grad.add(moment, alpha=group["momentum"]))
                )
            for shape, members in by_shape.items():
                updates = orthogonal(torch.stack([update for _, update in members]))
                scale = max(1.0, shape[-2] / shape[-1]) ** 0.5
                for (parameter, _), update in zip(members, updates, strict=True):
                    parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices of [..., m, n], singular values in about 0.7 to 1.2."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x


class Pair:
    """Several optimisers over disjoint parameters, used as one."""

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        """Order matters for `state_dict` only."""
        self.members = members

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all members."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        """State by parameter, of all members; entries are the members' own dicts."""
        return {parameter: state for member in self.members for parameter, state in member.state.items()}

    def step(self) -> None:
        """Step all members."""
        for member in self.members:
            member.step()

    def state_dict(self) -> list[Any]:
        """State of all members."""
        return [member.state_dict() for member in self.members]

    def load_state_dict(self, states: list[Any]) -> None:
        """Restore what `state_dict` gave."""
        for member, state in zip(self.members, states, strict=True):
            member.load_state_dict(state)


def optimiser(program: Program, parameters: list[nn.Parameter], names: list[str]) -> Any:
    """The program's optimiser over `parameters`. Every group keeps its base rate in `base_lr` for the schedule."""
    kind = program.optimiser
    adam: dict[str, Any] = {
        "lr": program.lr,
        "betas": (program.beta1, program.beta2),
        "weight_decay": program.weight_decay,
    }
    made: Any
    if kind == "adamw":
        made = torch.optim.AdamW(parameters, foreach=True, **adam)
    elif kind == "sgd":
        made = torch.optim.SGD(
            parameters, program.lr, program.momentum, weight_decay=program.weight_decay, foreach=True
        )
    elif kind == "muon":
        # Embedding and head are tables, not maps between hidden states (Muon's own advice).
        matrix = [
            p.dim() >= 2 and "embed" not in name and "lm_head" not in name
            for p, name in zip(parameters, names, strict=True)
        ]
        matrices = [p for p, is_matrix in zip(parameters, matrix, strict=True) if is_matrix]
        rest = [p for p, is_matrix in zip(parameters, matrix, strict=True) if not is_matrix]
        made = Pair(
            [Muon(matrices, program.lr), torch.optim.AdamW(rest, foreach=True, **(adam | {"lr": program.lr / 20}))]
        )
    else:
        raise InputError(f"{kind!r} is no optimiser; allowed are {', '.join(OPTIMISERS)}")
    for group in made.param_groups:
        group["base_lr"] = group["lr"]
    return made
