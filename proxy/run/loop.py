"""The training loop: engines, optimiser, the points where a fault may act, exact snapshots, and what is recorded.

One process plays all ranks: their chunks run one after the other on the same weights and their gradients are averaged,
which is what data parallelism computes. rl.py and supervised.py say what one step does.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.files import atomic_path
from faultproxy.analyzer.record import Recorder
from faultproxy.analyzer.record.curvature import top_eigenvalue
from faultproxy.analyzer.record.probe import Seen, UpdateMeter, gradient_stats, moments
from faultproxy.proxy.run import device as devices
from faultproxy.proxy.run.config import Program
from faultproxy.proxy.run.engine import Engine
from faultproxy.proxy.run.optim import optimiser
from faultproxy.proxy.run.precision import LossScaler, finite, round_to
from faultproxy.proxy.run.tasks import make_task
from faultproxy.proxy.run.warm import warm_weights

#: What torch's `_foreach_` functions take and give.
Tensors = list[Tensor] | tuple[Tensor, ...]
POINTS = ("batch", "sync", "rolled", "reward", "advantage", "old", "loss", "grad", "reduce", "update", "stepped")
#: Steps between two evaluations, expert loads, and curvature estimates: each costs about as much as a step.
EVAL_EVERY, LOADS_EVERY, CURVATURE_EVERY = 8, 4, 4
EVAL_PROMPTS, CURVATURE_ROWS = 64, 8
#: Step of the aux-loss-free balancing bias (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: 0.001).
BIAS_STEP = 1e-3
_DATA_SEED, _SAMPLE_SEED, _FAULT_SEED, _EVAL_SEED = 1_000_003, 2_000_003, 3_000_017, 4_000_037


class Loop:
    """One run of a program. Deterministic given program, seed, CPU type, and thread count."""

    def __init__(
        self,
        program: Program,
        seed: int,
        recorder: Recorder | None = None,
        *,
        device: str = "cpu",
        curvature: bool = True,
    ) -> None:
        """Build engines from warmed-up weights (cached); `recorder` None records nothing."""
        devices.deterministic()
        self.program, self.seed, self.recorder, self.curvature = program, seed, recorder, curvature
        self.device = devices.device(device)
        self.task = make_task(program.task, **program.task_args)
        self.step_number, self.lr = 0, program.lr
        self.points: dict[str, list[Callable[..., Any]]] = {name: [] for name in POINTS}
        self.rng = torch.Generator().manual_seed(_DATA_SEED + seed)
        self.sampling = torch.Generator(self.device).manual_seed(_SAMPLE_SEED + seed)
        self.faults_rng = torch.Generator().manual_seed(_FAULT_SEED + seed)
        compute = program.trainer_compute
        self.trainer = self._engine(weights=compute, compute=compute)
        warmed = warm_weights(program, self.task)
        self.trainer.load(warmed, self.trainer.buffers())
        needs_reference = program.beta > 0 or program.algorithm == "dpo"
        self.reference = self._engine() if needs_reference else None
        self.rollout = (
            self._engine(weights=program.rollout_weights, compute=program.rollout_compute) if program.rl else None
        )
        self.critic = self._engine(critic=True) if program.algorithm == "ppo" else None
        for engine in (self.reference, self.rollout):
            if engine is not None:
                engine.load(warmed, self.trainer.buffers())
        if self.critic is not None:
            self.critic.load([*warmed[:-1], self.critic.masters[-1].detach().clone()], self.trainer.buffers())
        self.optimiser = optimiser(program, self.trainer.masters, self.trainer.names)
        self.critic_optimiser = (
            None if self.critic is None else optimiser(program, self.critic.masters, self.critic.names)
        )
        self.scaler = LossScaler(program.loss_scale, program.scale_window) if compute == "fp16" else None
        #: Trainer weights of the last steps, oldest first, that a stale rollout uses.
        self.versions: deque[tuple[list[Tensor], list[Tensor]]] = deque(maxlen=program.staleness + 1)
        self.groups = self.trainer.groups()
        self.meter = UpdateMeter(self.groups)
        self.curvature_state: dict[str, Any] = {}
        self.start_norm: float | None = None
        held_out = torch.Generator().manual_seed(_EVAL_SEED)
        self.held_out = self.task.sample(EVAL_PROMPTS, held_out).to(self.device)
        self._forget()

    def _forget(self) -> None:
        """Empty what a step measures: numbers or 0-dim tensors by signal (a stat after a colon)."""
        self.row: dict[str, Any] = {}
        self.critic_row: dict[str, Any] = {}
        self.hidden: dict[str, Any] = {}
        self.held_out_row: dict[str, Any] = {}
        self.means: dict[str, list[Any]] = {}
        self.ranks: list[tuple[int, Tensor, Tensor]] = []
        self.layers: dict[str, dict[int, float]] = {}
        self.loads: dict[int, list[float]] = {}
        self.batch: Any = None
        #: What the rollout engine did inside; a fault at `rolled` that swaps answers must swap these rows too.
        self.rollout_seen: Seen | None = None

    def _engine(self, **options: Any) -> Engine:
        positions = self.task.prompt_length + self.task.response_length
        return Engine(self.program.model, self.task.vocab, positions, 0, device=self.device, **options)

    # -- faults -------------------------------------------------------------------------------------------------------
    def at(self, point: str, function: Callable[..., Any]) -> None:
        """Let `function(loop, ...)` act at a point of every step from now on; see POINTS."""
        self.points[point].append(function)

    def through(self, point: str, value: Any, *more: Any) -> Any:
        """The value after all functions of a point."""
        for function in self.points[point]:
            value = function(self, value, *more)
        return value

    # -- running ------------------------------------------------------------------------------------------------------
    def run(self, until: int) -> None:
        """Steps up to and with number `until`."""
        while self.step_number < until:
            self.step()

    def step(self) -> None:
        """One training step, recorded."""
        from faultproxy.proxy.run.rl import rl_step
        from faultproxy.proxy.run.supervised import supervised_step

        started = time.perf_counter()
        self.step_number += 1
        self._forget()
        self._schedule()
        (rl_step if self.program.rl else supervised_step)(self)
        self.row["step_time"] = time.perf_counter() - started
        self._write()

    def _schedule(self) -> None:
        """Linear warm-up, then a constant rate; `loop.lr` over the program's rate scales every group."""
        warm = min(1.0, self.step_number / max(1, self.program.lr_warmup))
        for chosen in (self.optimiser, self.critic_optimiser):
            for group in chosen.param_groups if chosen is not None else ():
                group["lr"] = group["base_lr"] * (self.lr / self.program.lr if self.program.lr else 0.0) * warm
        self.row["lr"] = self.lr * warm

    def learn(self, losses: Callable[[Tensor], Tensor], rows: Tensor, unit: int) -> None:
        """One optimiser step of the trainer on the batch rows; `losses(rows)` is the loss of a chunk.

        Rows are dealt to ranks and accumulation steps in whole groups of `unit` adjacent ones.
        """
        program, engine, scale = self.program, self.trainer, self.scaler.scale if self.scaler else 1.0
        total: Tensors | None = None
        seen: list[Tensor] = []
        for rank, part in enumerate(rows.view(-1, unit).chunk(program.ranks)):
            own: list[Tensor] = []
            for chunk in part.chunk(program.accumulate):
                loss = losses(chunk.flatten())
                for function in self.points["loss"]:
                    loss = function(self, self.batch, loss, rank)
                (loss * scale / program.accumulate).backward()
                own.append(loss.detach())
            seen += own
            gradients = self._gradients(engine, scale)
            gradients = self.through("grad", gradients, rank)
            if program.ranks > 1:
                self._rank(rank, torch.stack(own).mean(), gradients)
            total = gradients if total is None else torch._foreach_add(total, gradients)
        assert total is not None
        if program.ranks > 1:
            total = torch._foreach_div(total, program.ranks)
        total = self.through("reduce", total)
        for master, gradient in zip(engine.masters, total, strict=True):
            master.grad = gradient
        self.mean("policy_loss" if program.rl else "loss", torch.stack(seen).mean())
        self._update()

    def _gradients(self, engine: Engine, scale: float) -> Tensors:
        """Float32 gradients of the chunks since the last call, unscaled; through the trainer's own format before that."""
        taken = []
        for parameter in engine.parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = None
            taken.append(gradient.float() if engine.real else round_to(gradient, engine.compute))
        return taken if scale == 1.0 else torch._foreach_mul(taken, 1.0 / scale)

    def _rank(self, rank: int, loss: Tensor, gradients: Tensors) -> None:
        self.ranks.append((rank, loss, joint_norm(gradients)))

    def _update(self) -> None:
        """Overflow check, clipping, optimiser step, and what they tell."""
        masters, recorded = self.trainer.masters, self.recorder is not None
        if recorded:
            found = gradient_stats(self.groups)
            self.layers["grad_norm"] = found.grad_norm
            self.mean("grad_norm", found.total)
            self.mean("nonfinite_grad_frac", found.nonfinite_grad_frac)
            self.mean("zero_grad_frac", found.zero_grad_frac)
            self.meter.before()
        overflow = self.scaler is not None and self.scaler.update(
            not finite([m.grad for m in masters if m.grad is not None])
        )
        if self.scaler is not None:
            self.row["loss_scale"] = self.scaler.scale
            self.row["skipped_steps"] = self.row.get("skipped_steps", 0.0) + float(overflow)
        # All functions are asked, also after one said no: each may keep count of the steps.
        allowed = [function(self) is not False for function in self.points["update"]]
        if not overflow and all(allowed):
            clip(masters, self.program.clip_grad)
            self.optimiser.step()
        for function in self.points["stepped"]:
            function(self)
        self.trainer.refresh()
        # In float32 masters are the model's own weights: the next backward would add to these.
        for master in masters:
            master.grad = None
        if recorded:
            ratios, self.row["params_norm"] = self.meter.after()
            if self.curvature and (self.step_number + 1) % CURVATURE_EVERY == 0:
                self.curvature_state["update"] = self.meter.change(self.trainer.masters)
            self.layers |= ratios | moments(getattr(self.optimiser, "members", self.optimiser), self.groups)
            self.row["update_ratio"] = sum(ratios["update_ratio"].values()) / max(1, len(ratios["update_ratio"]))

    def mean(self, name: str, value: Any) -> None:
        """Collect a value of one optimiser step; the row gets the mean over the step's updates."""
        self.means.setdefault(name, []).append(value)

    def balance(self, indices: dict[int, Tensor]) -> None:
        """Move each router's selection bias towards an even load, where the family has one (DeepSeek-V3)."""
        for number, chosen in indices.items():
            bias = getattr(self.trainer.routers[number], "e_score_correction_bias", None)
            if bias is not None:
                load = torch.bincount(chosen.flatten(), minlength=len(bias)).float()
                bias.add_(BIAS_STEP * torch.sign(load.mean() - load))

    def bend(self, loss: Callable[[], Tensor]) -> None:
        """Curvature of the trainer's loss on a few rows, every few steps."""
        if self.curvature and self.recorder is not None and self.step_number % CURVATURE_EVERY == 0:
            top, along = top_eigenvalue(loss, self.trainer.parameters, self.curvature_state)
            self.row["curvature_top"] = top
            if along is not None:
                self.row["curvature_along_update"] = along

    # -- recording ----------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        """Hand the row to the recorder with one device sync."""
        if self.recorder is None:
            return
        row, step, log = self.row, self.step_number, self.recorder.log
        row |= {name: sum(values) / len(values) for name, values in self.means.items()}
        norm = row["params_norm"]
        self.start_norm = self.start_norm or norm
        self.hidden |= {
            "weights_norm_ratio": norm / self.start_norm,
            "weights_nonfinite": float(not math.isfinite(norm)),
        }
        log(step, numbers(row))
        log(step, numbers(self.critic_row), role="critic")
        log(step, numbers(self.hidden), axis="system", label="hidden")
        log(step, numbers(self.held_out_row), axis="eval")
        for rank, loss, length in self.ranks:
            log(
                step, {"policy_loss" if self.program.rl else "loss": float(loss), "grad_norm": float(length)}, rank=rank
            )
        by_layers: dict[tuple[int, ...], dict[str, list[float]]] = {}
        for name, values in self.layers.items():
            by_layers.setdefault(tuple(values), {})[name] = list(values.values())
        for numbered, signals in by_layers.items():
            self.recorder.log_layers(step, signals, numbered)
        if self.loads and step % LOADS_EVERY == 0:
            self.recorder.log_experts(step, "expert_load", self.loads)

    # -- exact copies -------------------------------------------------------------------------------------------------
    def snapshot(self) -> dict[str, Any]:
        """All that the next step depends on, copied."""
        critic = None if self.critic is None or self.critic_optimiser is None else (
            [m.detach().clone() for m in self.critic.masters], copy.deepcopy(self.critic_optimiser.state_dict()))  # fmt: skip
        return {
            "masters": [m.detach().clone() for m in self.trainer.masters],
            "buffers": [b.clone() for b in self.trainer.buffers()],
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "critic": critic,
            "rollout": None if self.rollout is None else [m.detach().clone() for m in self.rollout.masters],
            "versions": copy.deepcopy(list(self.versions)),
            "scaler": self.scaler.state() if self.scaler else None,
            "generators": [g.get_state() for g in (self.rng, self.sampling, self.faults_rng)],
            "curvature": copy.deepcopy(self.curvature_state),
            "step": self.step_number, "lr": self.lr, "start_norm": self.start_norm,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot of the same program: the next steps are bit-identical to the original's."""
        self.trainer.load(state["masters"], state["buffers"])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        if self.critic is not None and self.critic_optimiser is not None:
            self.critic.load(state["critic"][0], state["buffers"])
            self.critic_optimiser.load_state_dict(copy.deepcopy(state["critic"][1]))
        if self.rollout is not None:
            self.rollout.load(state["rollout"], state["buffers"])
        self.versions = deque(copy.deepcopy(state["versions"]), maxlen=self.versions.maxlen)
        if self.scaler is not None:
            self.scaler.restore(state["scaler"])
        for generator, saved in zip((self.rng, self.sampling, self.faults_rng), state["generators"], strict=True):
            generator.set_state(saved)
        self.curvature_state = copy.deepcopy(state["curvature"])
        self.step_number, self.lr, self.start_norm = state["step"], state["lr"], state["start_norm"]

    def checkpoint(self, path: str | Path) -> None:
        """Write a snapshot to a file, whole or not at all."""
        with atomic_path(path, force=True) as temporary:
            torch.save({"program": self.program.name, "seed": self.seed, **self.snapshot()}, temporary)

    def resume(self, path: str | Path) -> None:
        """Go on from a checkpoint of the same program and seed. Raises InputError for any other file; unpickles no code."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            told = (state["program"], state["seed"])
        except (OSError, RuntimeError, LookupError, TypeError, ValueError, UnpicklingError) as error:
            raise InputError(f"{path}: no checkpoint of the lab ({error}); make one with Loop.checkpoint") from error
        if told != (self.program.name, self.seed):
            raise InputError(
                f"{path}: is of {told[0]}, seed {told[1]}; this run is {self.program.name}, seed {self.seed}"
            )
        self.restore(state)


def joint_norm(tensors: Tensors) -> Tensor:
    """The norm of all tensors as one vector."""
    norm: Tensor = torch.stack(torch._foreach_norm(tensors)).norm()
    return norm


def clip(masters: list[Any], limit: float) -> Tensor:
    """Scale gradients so that their joint norm is at most `limit`; 0 switches it off. Returns the norm before. One that is
    not finite poisons them all, as torch's own clip_grad_norm_ does."""
    gradients = [m.grad for m in masters if m.grad is not None]
    norm = joint_norm(gradients)
    if limit > 0:
        torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The row with every tensor as a float, all read at once."""
    tensors = {name: value for name, value in row.items() if isinstance(value, Tensor)}
    read = torch.stack([t.detach().float().reshape(()) for t in tensors.values()]).tolist() if tensors else []
    return {name: float(value) for name, value in row.items() if name not in tensors} | dict(
        zip(tensors, read, strict=True)
    )
