"""An engine: one copy of the model with its own number formats and router path, which scores or samples answers."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.record.probe import Probe
from faultproxy.proxy.run import models
from faultproxy.proxy.run.config import EOS, PAD, ModelSpec
from faultproxy.proxy.run.losses import load_balancing_loss, token_logps
from faultproxy.proxy.run.precision import DTYPES, emulate, round_to


class Engine:
    """A model, the formats its weights and activations are held in, and where its parts are.

    On a CPU formats are emulated by rounding; elsewhere weights and activations really have the type (fp8: rounded).
    `masters` are the float32 weights the optimiser steps; they are the model's own where it computes in float32.
    """

    #: A CPU computes in bf16 and fp16 too, only some three times slower than it emulates them.
    emulated = True

    def __init__(
        self, spec: ModelSpec, vocab: int, positions: int, seed: int, *,
        weights: str = "fp32", compute: str = "fp32", device: torch.device | None = None, critic: bool = False,
    ) -> None:  # fmt: skip
        """Build the model on `device`; `critic` replaces its head by one value a position."""
        self.device = device or torch.device("cpu")
        self.weights_format, self.compute = weights, compute
        model = models.build(spec, vocab, positions, seed)
        if critic:
            if model.config.tie_word_embeddings:
                raise InputError(
                    f"{spec.path}: its head is its embedding, which a critic cannot take; use grpo, not ppo"
                )
            model.lm_head = nn.Linear(model.lm_head.in_features, 1, bias=False)
            nn.init.zeros_(model.lm_head.weight)
        self.real = compute in ("bf16", "fp16") and not (self.emulated and self.device.type == "cpu")
        self.model = model.to(self.device, DTYPES[compute] if self.real else torch.float32)
        body = models.decoder(model)
        self.layers: list[nn.Module] = list(body.layers)
        self.routers, self.experts = models.routers(body.layers), models.experts(body.layers)
        self.embedding, self.final_norm, self.head = body.embed_tokens, body.norm, model.lm_head
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters: list[nn.Parameter] = list(model.parameters())
        self._buffers = dict(model.named_buffers())
        self._own = weights == "fp32" and not self.real
        self.masters = (
            self.parameters if self._own else [nn.Parameter(p.detach().float().clone()) for p in self.parameters]
        )
        self.refresh()
        if not self.real:
            emulate(self._rounded(), compute)
        self.probe = Probe(self.layers, self.routers)
        #: Experts to use instead of the router's own choice, by layer: [B, T, K]; see `replay`.
        self.routes: dict[int, Tensor] | None = None
        #: Router logits of the forwards since it was emptied, with their gradient; None keeps none. See `balance_loss`.
        self.routed: list[Tensor] | None = None
        self.top_k = max((int(cast("Any", router).top_k) for router in self.routers.values()), default=0)
        for number, router in self.routers.items():
            router.register_forward_hook(self._replayed(number))

    def _rounded(self) -> list[nn.Module]:
        """Where an engine in a narrow format stores a value: block outputs, norms, the residual stream, the logits."""
        parts: list[nn.Module] = [self.embedding, self.final_norm, self.head]
        for number, layer in enumerate(self.layers):
            parts += [
                layer,
                *(m for name, m in layer.named_children() if name in ("self_attn", "mlp")),
                *self.norms(number),
            ]
        return parts

    def norms(self, layer: int) -> list[nn.Module]:
        """The norms before attention and before the feed-forward part of a layer."""
        return [m for name, m in self.layers[layer].named_children() if name.endswith("layernorm")]

    def groups(self) -> dict[int, list[nn.Parameter]]:
        """Master weights by layer; -1 holds embedding, head, and final norm."""
        of = {id(p): number for number, layer in enumerate(self.layers) for p in layer.parameters()}
        found: dict[int, list[nn.Parameter]] = {}
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            found.setdefault(of.get(id(parameter), -1), []).append(master)
        return found

    def weight(self, name: str) -> Tensor:
        """The weight as the engine holds it, by parameter name."""
        return self.parameters[self.names.index(name)].detach()

    def refresh(self) -> None:
        """Copy the masters into the model, rounded to its weight format (after an optimiser step)."""
        if self._own:
            return
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(round_to(master, self.weights_format))

    def buffers(self) -> list[Tensor]:
        """State that is no parameter: the selection bias of DeepSeek-V3's routers."""
        return [self._buffers[name] for name in sorted(self._buffers) if name.endswith("e_score_correction_bias")]

    def load(self, weights: list[Tensor], buffers: list[Tensor]) -> None:
        """Take weights of another engine of the same shape, rounded to this one's format."""
        with torch.no_grad():
            for master, weight in zip(self.masters, weights, strict=True):
                master.copy_(weight)
            for own, other in zip(self.buffers(), buffers, strict=True):
                own.copy_(other)
            if self._own:
                return
        self.refresh()

    def logits(self, tokens: Tensor, cache: Any = None) -> Tensor:
        """Float32 logits [B, T, V] of tokens [B, T]."""
        out: Tensor = self.model(input_ids=tokens, cache=cache, use_cache=cache is not None).logits
        return out.float()

    def answer_logits(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """[B, R, V]: the distribution each response token was drawn from."""
        start = prompts.shape[1] - 1
        return self.logits(torch.cat([prompts, responses], 1))[:, start : start + responses.shape[1]]

    @torch.no_grad()
    def sample(
        self, prompts: Tensor, length: int, generator: torch.Generator, temperature: float = 1.0, greedy: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Answers to prompts [B, P]: tokens [B, R], mask [B, R] (up to and with EOS), log-probabilities [B, R].

        A row whose logits are not finite yields token 0 with a NaN log-probability, as serving engines print `!!!`.
        """
        cache = DynamicCache(config=self.model.config)
        token, alive = prompts, torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        tokens, masks, logps = [], [], []
        for _ in range(length):
            logits = self.logits(token, cache)[:, -1] / temperature
            if greedy:
                chosen = logits.nan_to_num(nan=0.0).argmax(-1)
            else:
                odds = logits.softmax(-1)
                broken = ~torch.isfinite(odds.sum(-1, keepdim=True))
                dull = nn.functional.one_hot(torch.tensor(PAD, device=self.device), odds.shape[-1]).to(odds)
                chosen = torch.multinomial(torch.where(broken, dull, odds), 1, generator=generator).squeeze(1)
            chosen = torch.where(alive, chosen, PAD)
            logps.append(token_logps(logits.unsqueeze(1), chosen.unsqueeze(1)).squeeze(1))
            tokens.append(chosen)
            masks.append(alive)
            alive = alive & (chosen != EOS)
            token = chosen.unsqueeze(1)
        return torch.stack(tokens, 1), torch.stack(masks, 1), torch.stack(logps, 1)

    def balance_loss(self) -> Tensor | float:
        """The router loss of the forwards since `routed` was emptied, which it ends; 0 where there is no router."""
        routed, self.routed = self.routed, None
        return load_balancing_loss(routed, self.top_k) if routed else 0.0

    def _replayed(self, number: int) -> Any:
        """A router hook that forces the recorded experts and weighs them by this engine's own scores."""

        def hook(router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
            if self.routed is not None:
                self.routed.append(output[0])
            if self.routes is None or number not in self.routes:
                return None
            logits, weights, own = output
            chosen = self.routes[number].flatten(0, 1)
            if len(chosen) != len(own):  # another batch than the recorded one
                return None
            scores = models.router_scores(router, logits)
            return logits, models.gate_weights(router, scores, chosen).to(weights), chosen

        return hook
