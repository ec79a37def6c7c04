"""Faults of hyper-parameters, optimiser state, weight sync, and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from faultproxy.proxy.run.mechanisms.common import change_output, happens, mechanism, noise_like, rollout_of

if TYPE_CHECKING:
    from faultproxy.proxy.run.loop import Loop


@mechanism
def setting(loop: Loop, *, values: dict[str, float]) -> None:
    """Fields of the program have other values from now on."""
    loop.program = loop.program.changed(**values)


@mechanism
def setting_factor(loop: Loop, *, name: str, factor: float) -> None:
    """A field of the program is multiplied by `factor` from now on."""
    loop.program = loop.program.changed(**{name: getattr(loop.program, name) * factor})


@mechanism
def learning_rate(loop: Loop, *, factor: float) -> None:
    """The learning rate is multiplied by `factor`."""
    loop.lr *= factor


@mechanism
def optimiser_setting(loop: Loop, *, name: str, value: float | list[float]) -> None:
    """A setting of every parameter group of the optimiser that knows it."""
    for group in loop.optimiser.param_groups:
        if name in group:
            group[name] = tuple(value) if isinstance(value, list) else value


@mechanism
def update_skipped(loop: Loop, *, share: float) -> None:
    """The actor's optimiser step is skipped in a share of the steps."""
    loop.at("update", lambda loop: not happens(loop, share))


@mechanism
def state_lost(loop: Loop, *, every: int) -> None:
    """Resume without optimiser state: moments and step counts are zero at the onset, and again `every` steps."""
    onset = loop.step_number + 1

    def lose(loop: Loop, items: Any) -> Any:
        if (loop.step_number - onset) % every == 0:
            for state in loop.optimiser.state.values():
                for moment in state.values():
                    if isinstance(moment, Tensor):
                        moment.zero_()
        return items

    loop.at("batch", lose)


@mechanism
def weights_reverted(loop: Loop, *, every: int) -> None:
    """Resume from one and the same old checkpoint, after every so many steps; the optimiser state goes on."""
    old = [weight.detach().clone() for weight in loop.trainer.masters]
    onset = loop.step_number + 1

    def revert(loop: Loop) -> None:
        if (loop.step_number - onset + 1) % every == 0:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](loop.trainer.masters), old)

    loop.at("stepped", revert)


@mechanism
def sync_skipped(loop: Loop, *, every: int) -> None:
    """The rollout engine gets new weights only every so many steps (0: never again), and nobody counts the lag."""
    onset = loop.step_number + 1

    def hold(loop: Loop, name: str, weight: Tensor) -> Tensor:
        due = every and (loop.step_number - onset + 1) % every == 0
        return weight if due else rollout_of(loop).weight(name).clone()

    loop.at("sync", hold)


@mechanism
def rollout_temperature(loop: Loop, *, temperature: float) -> None:
    """The rollout engine divides its logits by a temperature that the trainer does not know of."""
    change_output(rollout_of(loop).head, lambda _, logits: logits / temperature)


@mechanism
def critic_reset(loop: Loop, *, size: float, every: int) -> None:
    """The critic's head gets noise of `size` times its input-normalised spread, at the onset and again `every` steps."""
    onset, critic = loop.step_number + 1, loop.critic
    assert critic is not None

    def shake(loop: Loop, items: Any) -> Any:
        if (loop.step_number - onset) % every == 0:
            head = critic.masters[-1]
            with torch.no_grad():
                head.add_(size * head.shape[-1] ** -0.5 * noise_like(loop, head))
            critic.refresh()
        return items

    loop.at("batch", shake)
