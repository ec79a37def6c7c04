"""The dimensions of a model, read from its `config.json`, and its parameters in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.families import Config, Keys
from faultproxy.proxy.shape import ModelShape, number, places, read_shape, value

#: What configs call the sizes of a decoder; dotted: of a sub-configuration.
_KEYS: dict[str, Keys] = {
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "attn_config.kv_n_heads"),
    "vocab": ("vocab_size",),
    "width": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_config.ffn_hidden_size"),
    "shared_width": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}
#: Dimensions of latent attention: ours, the key, what transformers takes where it is absent.
_LATENT = (("q_rank", "q_lora_rank", 0), ("rope_dim", "qk_rope_head_dim", 64), ("nope_dim", "qk_nope_head_dim", 128), ("value_dim", "v_head_dim", 128))  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A decoder: sizes in elements, counts of layers; `experts` is 0 for a dense model."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dense_width: int
    moe_layers: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    tied: bool = False
    mtp: int = 0
    window: int = 0
    windowed: int = 0
    kv_rank: int = 0
    q_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    qkv_bias: bool = False
    all_bias: bool = False
    qk_norm: int = 0
    shared_gate: bool = False
    correction: bool = False
    output_gate: bool = False
    linear_layers: int = 0
    linear_heads: tuple[int, int] = (0, 0)
    linear_dims: tuple[int, int] = (0, 0)
    convolution: int = 0

    @property
    def latent(self) -> bool:
        """Whether attention is multi-head latent attention (MLA)."""
        return self.kv_rank > 0

    @property
    def score_dims(self) -> int:
        """Query plus value elements a token that attention multiplies with its context."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim if self.latent else 2 * self.head_dim)

    @property
    def decode_dims(self) -> int:
        """As `score_dims` while decoding; MLA then attends in its latent space (arXiv 2405.04434, section 2.1)."""
        return self.heads * (2 * self.kv_rank + self.rope_dim) if self.latent else self.score_dims

    @property
    def attending(self) -> int:
        """Layers that attend to all of their context; the others see a window or keep a state."""
        return self.layers - self.windowed - self.linear_layers

    @property
    def state_elements(self) -> int:
        """Elements a sequence keeps in one layer of linear attention, whatever its length: a key x value matrix a value head, and
        the last inputs of the convolution."""
        (keys, values), (key, value) = self.linear_heads, self.linear_dims
        return values * key * value + (2 * keys * key + values * value) * max(0, self.convolution - 1)

    @property
    def kv_elements(self) -> int:
        """Elements a token and layer keeps in the KV cache: 2 nkv hd, or kvl + rope for MLA."""
        return self.kv_rank + self.rope_dim if self.latent else 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Parameters:
    """Parameters by part, in elements; `total` is the model without its multi-token-prediction modules."""

    embedding: int
    head: int
    attention: int
    dense: int
    routed: int
    shared: int
    router: int
    norms: int
    mtp: int
    mtp_copies: int
    active: int

    @property
    def total(self) -> int:
        """The sum of all parts but the prediction modules."""
        return self.embedding + self.head + self.attention + self.dense + self.routed + self.shared + self.router + self.norms  # fmt: skip

    @property
    def stored(self) -> int:
        """What a checkpoint with its prediction modules holds: they repeat the embedding and the head."""
        return self.total + self.mtp + self.mtp_copies


def shape_of(config: Config) -> Shape:
    """The dimensions of a decoder with grouped-query or latent attention and gated feed-forward blocks.

    Raises:
        InputError: The family is unknown or has no closed form, or a size that matters is missing or absurd.
    """
    model = read_shape(config)
    family, layers = model.family, model.layers
    other = sorted(set(model.attention) - set(family.attends) - ({"linear_attention"} if family.gated_delta else set()))
    if family.uncounted or other:
        raise InputError(
            f"{family.name} has {family.uncounted or f'layers of {visible(other[0], 40)}'}: no closed form; decoders with grouped-query or "
            "latent attention and gated feed-forward blocks have one"
        )

    def size(keys: Keys, default: int | None = None) -> int:
        return number(config, family, keys, default)

    hidden, heads = size(_KEYS["hidden"]), size(_KEYS["heads"])
    experts, top_k, routed = max(model.experts), max(model.top_k), len(model.sparse)
    if routed and not 0 < top_k <= experts:
        raise InputError(f"{top_k:,} of {experts:,} experts a token: 1 to all of them can be picked")
    expert_width = _widest(config, model) if routed else 0
    shared = size(family.shared_count, 0) * expert_width if family.shared_count else 0
    rank, head_dim = size(("kv_lora_rank",), 0), size(("head_dim",), hidden // max(1, heads))
    kv_heads, window = size(_KEYS["kv_heads"], heads), size(("sliding_window",), 0)
    if not (hidden and heads and (rank or kv_heads * head_dim)):
        raise InputError(
            f"{hidden:,} wide with {heads:,} heads and {kv_heads:,} of keys, {head_dim:,} wide: at least 1 of each makes a model"
        )
    biased = bool(value(config, family, ("attention_bias",)))
    latent: dict[str, Any] = {name: size((key,), default) for name, key, default in _LATENT} if rank else {}
    normed = (
        family.qk_norm
        if family.qk_norm in ("head", "all")
        else "head" * bool(family.qk_norm and value(config, family, (family.qk_norm,)))
    )
    # Around a language model that says otherwise, the whole model's word counts: its loader ties or not.
    tied = next(
        (holder[last] for _, holder, last in reversed(places(config, family, ("tie_word_embeddings",)))), family.tied
    )
    return Shape(
        family.name, layers, hidden, heads, kv_heads, head_dim, size(_KEYS["vocab"]), size(_KEYS["width"], 0 if routed == layers else 4 * hidden),
        moe_layers=routed, experts=experts, top_k=top_k, expert_width=expert_width,
        shared_width=size(_KEYS["shared_width"], shared) if routed else 0, tied=bool(tied), mtp=model.mtp_layers,
        window=window, windowed=model.attention.count("sliding_attention") if window else 0,
        kv_rank=rank, **latent,
        qkv_bias=biased or family.qkv_bias, all_bias=biased and family.expert_bias,
        qk_norm={"head": 2 * head_dim, "all": (heads + kv_heads) * head_dim}.get(normed, 0),
        shared_gate="shared_expert_gate" in family.shared, correction=any("bias" in part for part in family.router) and not family.expert_bias,
        **(_linear(size, model) if family.gated_delta else {}),
    )  # fmt: skip


def _linear(size: Callable[[Keys], int], model: ModelShape) -> dict[str, Any]:
    """Sizes of Gated DeltaNet (arXiv 2412.06464) as Qwen3-Next and Qwen3.5 mix it with gated attention."""

    def pair(*keys: str) -> tuple[int, int]:
        return size((keys[0],)), size((keys[1],))

    return {
        "output_gate": True,
        "linear_layers": model.attention.count("linear_attention"),
        "linear_heads": pair("linear_num_key_heads", "linear_num_value_heads"),
        "linear_dims": pair("linear_key_head_dim", "linear_value_head_dim"),
        "convolution": size(("linear_conv_kernel_dim",)),
    }


def _widest(config: Config, model: ModelShape) -> int:
    """The width of an expert; of a list of one a layer, the greatest."""
    found = value(config, model.family, model.family.expert_width)
    if isinstance(found, list) and found and all(type(width) is int for width in found):
        found = max(found)
    if type(found) is not int or not 0 < found < 1_000_000:
        raise InputError(
            f"{' or '.join(model.family.expert_width)} = {visible(str(found), 60)}; needed is the width of an expert"
        )
    return found


def attention_parameters(s: Shape) -> int:
    """Parameters of one layer's attention, in elements.

    GQA: H nh hd + 2 H nkv hd + nh hd H. MLA: H ql + ql + ql nh (nope + rope) + H (kvl + rope) + kvl + kvl nh (nope + v)
    + nh v H; without ql: H nh (nope + rope). Source: the modules of transformers' LlamaAttention and DeepseekV3Attention.
    """
    if s.latent:
        query = s.heads * (s.nope_dim + s.rope_dim)
        queries = s.hidden * s.q_rank + s.q_rank + s.q_rank * query if s.q_rank else s.hidden * query
        keys = s.hidden * (s.kv_rank + s.rope_dim) + s.kv_rank + s.kv_rank * s.heads * (s.nope_dim + s.value_dim)
        return queries + keys + s.heads * s.value_dim * s.hidden
    query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
    bias = (query + 2 * key) * s.qkv_bias + (s.hidden + s.heads) * s.all_bias  # gpt-oss: output bias and sinks
    return (2 + s.output_gate) * s.hidden * query + 2 * s.hidden * key + bias + s.qk_norm


def linear_parameters(s: Shape) -> int:
    """Parameters of one layer's Gated DeltaNet, in elements, with k and v the widths of all key and of all value heads.

    H (2 k + 2 v) + 2 H nv (projections, with the output gate, decay, and step), (2 k + v) c (convolution), 2 nv + dv (decay, step, norm),
    v H (output). Source: the modules of transformers' Qwen3NextGatedDeltaNet.
    """
    (keys, values), (key, value) = s.linear_heads, s.linear_dims
    k, v = keys * key, values * value
    return s.hidden * (2 * k + 2 * v + 2 * values) + (2 * k + v) * s.convolution + 2 * values + value + v * s.hidden


def expert_parameters(s: Shape) -> int:
    """Parameters of one routed expert, in elements: 3 H I (gate, up, down), with gpt-oss's biases (its modules in transformers)."""
    return 3 * s.hidden * s.expert_width + (2 * s.expert_width + s.hidden) * s.all_bias


def parameters(s: Shape) -> Parameters:
    """Parameters by part, in elements; `active` takes top-k experts for E, and the head but not the embedding.

    V H a table, 2 H of norms a layer and H more, E 3 H I + 3 H Is + E H a MoE layer, 3 H F a dense one, a prediction module
    a layer + 2 H H + 3 H. Source: the modules of transformers; docs/cost.md has the public totals it gives.
    """
    attention, expert, h = attention_parameters(s), expert_parameters(s), s.hidden
    shared = 3 * h * s.shared_width + h * s.shared_gate
    router = s.experts * (h + s.correction + s.all_bias)
    dense = s.layers - s.moe_layers
    table = s.vocab * h
    mixers = (s.layers - s.linear_layers) * attention + s.linear_layers * linear_parameters(s)
    active = mixers + dense * 3 * h * s.dense_width + s.moe_layers * (s.top_k * expert + shared + router)
    module = attention + 2 * h + (s.experts * expert + shared + router if s.experts else 3 * h * s.dense_width)
    return Parameters(
        table, 0 if s.tied else table, mixers, dense * 3 * h * s.dense_width, s.moe_layers * s.experts * expert,
        s.moe_layers * shared, s.moe_layers * router, h + 2 * h * s.layers, s.mtp * (module + 2 * h * h + 3 * h), s.mtp * 2 * table,
        active + table,
    )  # fmt: skip
