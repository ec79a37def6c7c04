"""Recorders for training loops that are not ours: plain torch, Hugging Face Trainer and TRL, verl's Tracking.

Keys of other writers go through the vocabulary (signals.toml), so `actor/grad_norm` and `grad_norm` are one signal;
unknown ones keep their own name. torch and transformers are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.ingest.tokens import MAX_KEY
from faultproxy.analyzer.record.stream import Recorder
from faultproxy.analyzer.trace import Key
from faultproxy.analyzer.vocabulary import resolve

if TYPE_CHECKING:
    from torch import nn

#: The Trainer's record at the end of training: averages over the run, under names of single steps.
_SUMMARY = "train_runtime"


def log_raw(recorder: Recorder, step: int, data: Mapping[str, Any]) -> None:
    """Record a writer's own dict; values that are no single number are left out.

    Of two keys that mean one signal the better alias has it, the other stays under its own name, as when a log is read.
    """
    taken: dict[Key, tuple[int, str]] = {}
    numbers: dict[str, float] = {}
    for raw, value in data.items():
        number = _number(value)
        if number is not None and len(raw) <= MAX_KEY:
            numbers[raw] = number
            found = resolve(raw)
            held = taken.get(found.key)
            if held is None or found.rank < held[0]:
                taken[found.key] = found.rank, raw
    for raw, number in numbers.items():
        found = resolve(raw)
        key = found.key
        if taken[key][1] != raw or max(key.layer or 0, key.expert or 0) >= 2**15:
            key = Key(raw, key.axis)
        recorder.log(
            step, {key.signal: number * found.scale}, key.axis, key.role, key.stat, key.label, None, key.layer,
            key.expert, key.module,
        )  # fmt: skip


def _number(value: Any) -> float | None:
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


class TrackingBackend:
    """A backend for verl's Tracking: `tracking.logger["faultproxy"] = TrackingBackend(recorder)`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def log(self, data: Mapping[str, Any], step: int, backend: Any = None) -> None:
        """Record one step and flush it: a step of verl takes seconds to minutes, a flush a millisecond."""
        log_raw(self.recorder, step, data)
        self.recorder.flush()

    def finish(self) -> None:
        """End the stream."""
        self.recorder.close()


class TorchRecorder:
    """Layers of any torch model: activations of a forward, gradients, updates, moments.

        hooks = TorchRecorder(model, recorder, optimiser)
        with hooks.forward():
            loss = model(**batch).loss
        loss.backward()
        hooks.before_step()
        optimiser.step()
        hooks.after_step(step, {"loss": loss.item()})

    Decoder layers are the longest nn.ModuleList; routers are modules in them whose class name ends with Router (those of
    transformers 5). Sharded parameters (FSDP, ZeRO) show only this rank's part.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, optimiser: Any = None, *, totals: bool = True) -> None:
        """`totals=False` leaves whole-model norms to a loop that logs its own."""
        from faultproxy.analyzer.record.probe import Probe, UpdateMeter

        self.recorder, self.optimiser, self.totals = recorder, optimiser, totals
        layers = decoder_layers(model)
        routers = {at: module for at, layer in enumerate(layers) for module in layer.modules() if _is_router(module)}
        self.probe = Probe(layers, routers)
        owner = {id(p): at for at, layer in enumerate(layers) for p in layer.parameters()}
        self.groups: dict[int, list[Any]] = {at: [] for at in range(-1, len(layers))}
        for p in model.parameters():
            self.groups[owner.get(id(p), -1)].append(p)
        self._meter = UpdateMeter(self.groups)
        self._layers: list[dict[str, Any]] = []
        self._loads: dict[int, list[float]] = {}
        self._whole: dict[str, float] = {}

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Watch the forwards of this block; the statistics go with the next `after_step`."""
        from faultproxy.analyzer.record.probe import activation_stats, routing_stats

        with self.probe.capture() as seen:
            yield
        if seen.hidden:
            self._layers.append(activation_stats(seen))
        if seen.logits:
            stats, self._loads = routing_stats(seen)
            self._layers.append(stats)

    def before_step(self) -> None:
        """Call between backward and the optimiser step, with gradients unscaled."""
        from faultproxy.analyzer.record.probe import gradient_stats

        self._meter.before()
        if any(p.grad is not None for group in self.groups.values() for p in group):
            found = gradient_stats(self.groups)
            self._layers.append({"grad_norm": found.grad_norm})
            self._whole = {"nonfinite_grad_frac": found.nonfinite_grad_frac, "zero_grad_frac": found.zero_grad_frac}
            if self.totals:
                self._whole["grad_norm"] = found.total

    def after_step(self, step: int, values: Mapping[str, Any] | None = None) -> None:
        """Call after the optimiser step; `values` are the loop's own numbers, under any known name."""
        from faultproxy.analyzer.record.probe import moments

        ratios, norm = self._meter.after()
        self._layers.append(ratios)
        if self.optimiser is not None:
            self._layers.append(moments(self.optimiser, self.groups))
        self.recorder.log(step, {**self._whole, "params_norm": norm})
        for stats in self._layers:
            self.recorder.log_layers(step, stats)
        if self._loads:
            self.recorder.log_experts(step, "expert_load", self._loads)
        if values:
            log_raw(self.recorder, step, values)
        self._layers, self._loads, self._whole = [], {}, {}


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest nn.ModuleList of a model that is not inside another one's entries; [] where it has none."""
    from torch import nn

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=()))


def _is_router(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Router")


def trainer_callback(recorder: Recorder, layers: bool = True) -> Any:
    """A transformers.TrainerCallback for Trainer and TRL: `Trainer(..., callbacks=[trainer_callback(recorder)])`.

    The world's first process records what the Trainer logs and, with `layers`, gradients (as clipped), updates, and moments
    by layer. `recorder` is flushed at every log and closed at the end of training.
    """
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        """Hands the Trainer's events to the recorder."""

        hooks: TorchRecorder | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if layers and state.is_world_process_zero and kwargs.get("model") is not None:
                self.hooks = TorchRecorder(kwargs["model"], recorder, kwargs.get("optimizer"), totals=False)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.hooks:
                self.hooks.before_step()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.hooks:
                self.hooks.after_step(state.global_step + 1)  # the Trainer counts it after this event

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and logs and _SUMMARY not in logs:
                log_raw(recorder, state.global_step, logs)
                recorder.flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.close()

    return Callback()
