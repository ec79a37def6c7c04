"""The dimensions of a model, read from its `config.json`, and its parameters in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest.facts.model import MAX_LAYERS, describe
from faultproxy.analyzer.report.clean import visible

#: Parts of a multimodal configuration that hold the language model, and dbrx's attention block.
_INNER = ("text_config", "llm_config", "language_config", "attn_config")
#: Families whose queries and keys are normed: over a head, or over all heads at once.
_NORM_HEAD = {"qwen3", "qwen3_moe", "qwen3_vl_moe"}
_NORM_ALL = {"olmoe", "flex_olmo", "minimax_m2"}
#: Families with biases on queries, keys, values that no key states.
_QKV_BIAS = {"qwen2", "qwen2_moe"}
#: Families whose router adds a correction to each expert's score.
_CORRECTED = {"deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "glm_moe_dsa", "dots1", "minimax_m2"}
#: Mixers that are not attention: their parameters have no closed form here.
_OTHER_MIXERS = {"linear_attention", "mamba", "conv", "recurrent", "moe", "mlp"}
_UNSUPPORTED = {"qwen3_next", "jamba", "granitemoehybrid", "nemotron_h", "kimi_linear", "bailing_hybrid", "lfm2_moe", "longcat_flash", "deepseek_v4", "jetmoe", "llama4", "llama4_text", "pangu_pro_moe", "gpt2", "gpt_neox", "opt", "bloom", "falcon", "phi", "starcoder2", "nemotron"}  # fmt: skip
#: Families whose head is the embedding where no key says otherwise.
_TIED = {"gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"}
#: Dimensions of latent attention: ours, the key, what transformers takes where it is absent.
_LATENT = (("q_rank", "q_lora_rank", 0), ("rope_dim", "qk_rope_head_dim", 64), ("nope_dim", "qk_nope_head_dim", 128), ("value_dim", "v_head_dim", 128))  # fmt: skip
_LIMIT = 1 << 24


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


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The dimensions that a `config.json` states; raises InputError where one that matters is missing or absurd."""
    keys = dict(config)
    for name in _INNER:
        if isinstance(inner := config.get(name), Mapping):
            keys.update((key, value) for key, value in inner.items() if value is not None)
    facts = {name.removeprefix("model."): value for name, value in describe(config).items()}
    family = str(facts.get("family", "unknown"))
    listed = keys.get("layer_types") or keys.get("layers_block_type")
    kinds = [kind for kind in listed if isinstance(kind, str)] if isinstance(listed, list) else []
    other = sorted(_OTHER_MIXERS.intersection(kinds))
    if family in _UNSUPPORTED or other:
        raise InputError(
            f"{visible(family, 40)}{f' with layers of {other[0]}' if other else ''}: no closed form for its layers; decoders with grouped-query or latent "
            "attention and gated feed-forward blocks have one"
        )

    def whole(names: str, default: int | None = None) -> int:
        found = facts.get(names)
        for name in (names, *names.split("|")):
            found = keys.get(name) if found is None else found
        if found is None and default is not None:
            return default
        if type(found) is not int or not 0 <= found <= _LIMIT:
            raise InputError(
                f"{names.split('|')[0]} is {visible(repr(found), 40)}: a whole number from 0 to {_LIMIT:,} is needed in the model's config.json"
            )
        return found

    layers, hidden, heads = whole("layers"), whole("hidden"), whole("heads")
    if not 0 < layers <= MAX_LAYERS or not hidden or not heads:
        raise InputError(
            f"{layers:,} layers of {hidden:,} with {heads:,} heads: 1 to {MAX_LAYERS:,} layers, and at least 1 of the others, make a model"
        )
    rank = whole("kv_lora_rank", 0)
    experts = whole("experts", 0)
    routing = facts.get("moe_layers", list(range(layers)))
    routed = len(routing) if experts > 1 else 0
    if routed and not 0 < whole("top_k") <= experts:
        raise InputError(f"{whole('top_k'):,} of {experts:,} experts a token: 1 to all of them can be picked")
    width = whole("intermediate_size|ffn_hidden_size|n_inner", 0) or (0 if routed == layers else 4 * hidden)
    expert_width = whole("width", 0) if routed else 0
    shared = whole("shared_experts", 0) * expert_width if routed else 0
    shared = whole("shared_expert_intermediate_size|shared_intermediate_size", shared) if routed else 0
    head_dim = whole("head_dim", hidden // heads)
    window = whole("sliding_window", 0)
    normed = family in _NORM_HEAD or bool(keys.get("use_qk_norm")) and family == "glm4_moe"
    kv_heads = whole("kv_heads", whole("kv_n_heads", heads))
    bias = bool(keys.get("attention_bias"))
    latent = {name: whole(key, default) for name, key, default in _LATENT} if rank else {}
    return Shape(
        family, layers, hidden, heads, kv_heads, head_dim, whole("vocab"), width,
        moe_layers=routed, experts=experts if routed else 0, top_k=whole("top_k") if routed else 0, expert_width=expert_width, shared_width=shared,
        tied=bool(keys.get("tie_word_embeddings", family in _TIED)), mtp=whole("mtp_layers", 0),
        window=window, windowed=kinds.count("sliding_attention") if window else 0, kv_rank=rank, **latent,
        qkv_bias=bias or family in _QKV_BIAS, all_bias=bias and family == "gpt_oss",
        qk_norm=2 * head_dim if normed else (heads + kv_heads) * head_dim if family in _NORM_ALL else 0,
        shared_gate=family == "qwen2_moe", correction=family in _CORRECTED or keys.get("topk_method") == "noaux_tc",
    )  # fmt: skip


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
    return 2 * s.hidden * query + 2 * s.hidden * key + bias + s.qk_norm


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
    active = s.layers * attention + dense * 3 * h * s.dense_width + s.moe_layers * (s.top_k * expert + shared + router)
    module = attention + 2 * h + (s.experts * expert + shared + router if s.experts else 3 * h * s.dense_width)
    return Parameters(
        table, 0 if s.tied else table, s.layers * attention, dense * 3 * h * s.dense_width, s.moe_layers * s.experts * expert,
        s.moe_layers * shared, s.moe_layers * router, h + 2 * h * s.layers, s.mtp * (module + 2 * h * h + 3 * h), s.mtp * 2 * table,
        active + table,
    )  # fmt: skip
