"""The recorder: rows in canonical form, a stream that outlives its process, probes that agree with plain formulas."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from math import inf, nan, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from faultproxy.analyzer import ingest
from faultproxy.analyzer.cli import analyze, faultproxy
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.record import Recorder, TorchRecorder, TrackingBackend, trace_of, trainer_callback
from faultproxy.analyzer.schema import VALUES, arrow
from faultproxy.analyzer.trace import Key, Trace

torch = pytest.importorskip("torch")
from faultproxy.analyzer.record import curvature, probe

torch.set_num_threads(1)


def _record(recorder: Recorder, steps: int) -> Recorder:
    for step in range(1, steps + 1):
        recorder.log(step, {"policy_loss": 3.0 - step / 10, "reward:max": 1.0, "lr": None})
        recorder.log_layers(step, {"grad_norm": [0.5, None, nan], "topk_overlap": {2: 0.25}})
        recorder.log_experts(step, "expert_load", {2: [0.75, 0.25]})
    return recorder


def _cells(trace: Trace) -> dict[Any, Any]:
    return {
        (frame.segments[row], frame.steps[row], column.key): cell
        for frame in (trace.frame, trace.detail)
        for row, column, cell in frame.cells()
    }


# -- the stream -------------------------------------------------------------------------------------------------------
def test_rows_are_canonical_and_in_the_order_logged() -> None:
    recorder = Recorder(None, "lab/healthy")
    recorder.log(3, {"loss": 0.5, "reward:max": inf, "lr": None}, rank=1)
    recorder.log_layers(3, {"grad_norm": [nan, None]}, [4, 5])
    recorder.log_experts(3, "expert_load", {4: [-inf, 1]})
    recorder.log(3, {"accuracy": True}, axis="eval", label="held_out")
    table = recorder.table()
    assert table.schema == arrow(VALUES)
    names = ("signal", "stat", "axis", "step", "rank", "layer", "expert", "label", "value", "state")
    assert [tuple(row[name] for name in names) for row in table.to_pylist()] == [
        ("loss", None, "train", 3, 1, None, None, None, 0.5, "finite"),
        ("reward", "max", "train", 3, 1, None, None, None, None, "pos_inf"),
        ("grad_norm", None, "train", 3, None, 4, None, None, None, "nan"),
        ("expert_load", None, "train", 3, None, 4, 0, None, None, "neg_inf"),
        ("expert_load", None, "train", 3, None, 4, 1, None, 1.0, "finite"),
        ("accuracy", None, "eval", 3, None, None, None, "held_out", 1.0, "finite"),
    ]


_KILLED = """
import os, signal, sys
from pathlib import Path
from faultproxy.analyzer.record.stream import Recorder
recorder = Recorder(Path(sys.argv[1]), "job", {"framework": "acme", "odd": float("nan"), "path": Path("x")}, flush_steps=4)
for step in range(1, 12):
    recorder.log(step, {"loss": 1.0 / step, "grad_norm": 2.0})
    recorder.log_layers(step, {"act_norm": [1.0, 2.0]})
    if step == 10:
        recorder.event("overflow", "loss scale 1.0")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_flushed_is_read_after_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "run.arrows"
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (trace,) = ingest.read([str(path)])
    assert trace.run == "job" and trace.facts["framework"] == "acme" and trace.facts["path"] == "x"
    assert trace.frame.steps == list(range(1, 11))  # the event flushed the last of them
    assert trace.frame.columns[Key("loss")].values[-1] == 0.1
    assert [(event.kind, event.text, event.step) for event in trace.events] == [("overflow", "loss scale 1.0", 10)]
    assert any("not closed" in warning for warning in trace.warnings) and not trace.sources[0].truncated
    torn = tmp_path / "torn.arrows"
    torn.write_bytes(path.read_bytes()[:-100])
    (trace,) = ingest.read([str(torn)])
    assert trace.frame.steps == list(range(1, 9)) and not trace.events
    assert trace.sources[0].truncated and any("cut off" in warning for warning in trace.warnings)


def test_a_file_a_table_and_its_compacted_form_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.arrows"
    with _record(Recorder(path, "x", {"framework": "acme"}), 20) as recorder:
        recorder.event("note", "done")
    (read,) = ingest.read([str(path)])
    assert not read.warnings and read.sources[0].format == "arrow-stream"
    held = trace_of(recorder.table(), {"framework": "acme"}, recorder.events)
    assert _cells(read) == _cells(held) and len(_cells(read)) == 20 * 7
    assert (held.facts, held.unrecognised, held.events) == (read.facts, read.unrecognised, read.events)
    for large in (False, True):
        if large:
            monkeypatch.setattr("faultproxy.analyzer.ingest.canonical.DETAIL", 10)
        done = CliRunner().invoke(faultproxy, ["ingest", str(path), "-o", str(tmp_path / f"{large}.trace")])
        assert done.exit_code == 0, done.output
    monkeypatch.undo()
    (small,), (large_,) = (ingest.read([str(tmp_path / f"{large}.trace")]) for large in (False, True))
    assert _cells(small) == _cells(large_) == _cells(read)
    assert [source.path for source in large_.sources][:1] == [str(path)]
    assert CliRunner().invoke(analyze, [str(path)]).exit_code == 0


def test_a_step_that_drops_is_a_restart_and_a_key_logged_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "x.arrows"
    with Recorder(path, "x", flush_steps=2) as recorder:
        for step in (1, 2, 3, 2, 3):
            recorder.log(step, {"loss": 1.0, "grad_norm": 1.0})
            recorder.log(step - 1, {"accuracy": 0.5}, axis="eval")
        recorder.log(3, {"loss": 7.0})
    (trace,) = ingest.read([str(path)])
    assert list(zip(trace.frame.segments, trace.frame.steps, strict=True))[-2:] == [(1, 2), (1, 3)]
    assert trace.frame.columns[Key("loss")].values[-1] == 7.0
    assert any("written twice" in warning for warning in trace.warnings)
    with pytest.raises(InputError, match="choose another name"):
        Recorder(path, "x")
    with pytest.raises(InputError, match="axis 'trian'"):
        recorder.log(9, {"loss": 1.0}, axis="trian")
    with pytest.raises(InputError, match="layer 40000"):
        recorder.log(9, {"loss": 1.0}, layer=40_000)
    with pytest.raises(InputError, match="3 values for 2 layers"):
        recorder.log_layers(9, {"loss": [1.0, 2.0, 3.0]}, [0, 1])


def test_foreign_compressed_and_damaged_streams_are_refused_or_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "x.arrows"
    with _record(Recorder(path, "x", flush_steps=2), 12) as recorder:
        recorder.event("note", "done")
    table, data = recorder.table(), path.read_bytes()
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(tmp_path / "packed.arrows"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=packed) as out,
    ):
        out.write_table(table)
    with pytest.raises(InputError, match="compressed"):
        ingest.read([str(tmp_path / "packed.arrows")])
    with (
        pa.OSFile(str(tmp_path / "foreign.arrows"), "wb") as sink,
        pa.ipc.new_stream(sink, pa.schema([("a", pa.int8())])),
    ):
        pass
    with pytest.raises(InputError, match="columns of docs"):
        ingest.read([str(tmp_path / "foreign.arrows")])
    rng = random.Random(0)
    for trial in range(30):
        broken = bytearray(data)
        for _ in range(rng.choice((1, 8))):
            broken[rng.randrange(4, len(broken))] = rng.choice((0, 0x7F, 0xFF, rng.randrange(256)))
        if trial % 3 == 0:
            del broken[rng.randrange(8, len(broken)) :]
        (tmp_path / "broken.arrows").write_bytes(broken)
        try:
            (trace,) = ingest.read([str(tmp_path / "broken.arrows")])
        except InputError:
            continue
        assert len(trace.frame) <= 13


# -- probes -----------------------------------------------------------------------------------------------------------
def _moe() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=24, hidden_size=16, intermediate_size=16, moe_intermediate_size=16, num_hidden_layers=3, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, num_experts=8, num_experts_per_tok=2, mlp_only_layers=[0],
        attn_implementation="eager", use_cache=True,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # `cache` from transformers 5.40 on
def test_compare_pairs_the_same_response_tokens() -> None:
    """A healthy pair agrees to rounding; what differs outside the mask is not seen, and a changed router is."""
    model, P, R = _moe(), 3, 4
    layers = list(model.model.layers)
    watched = probe.Probe(layers, {at: layers[at].mlp.gate for at in (1, 2)})
    tokens = torch.randint(0, 24, (5, P + R))
    mask = torch.arange(R) < torch.tensor([1, 2, 3, 4, 4])[:, None]

    def rollout(tokens: Any) -> probe.Seen:
        with torch.no_grad(), watched.capture() as seen:
            out = model(tokens[:, :P])
            for at in range(P, P + R - 1):
                out = model(tokens[:, at : at + 1], past_key_values=out.past_key_values)
        return seen

    with torch.no_grad(), watched.capture() as trained:
        model(tokens[:2], use_cache=False), model(tokens[2:], use_cache=False)
    found = probe.compare(trained, rollout(tokens), P, mask)
    assert found["act_norm_ratio"] == pytest.approx({0: 1, 1: 1, 2: 1}, abs=1e-4)
    assert found["topk_overlap"] == {1: 1, 2: 1}
    beyond = tokens.clone()
    beyond[0, P:] = 1  # the only response token of answer 0 is predicted from its prompt
    for name, by_layer in probe.compare(trained, rollout(beyond), P, mask).items():
        assert by_layer == pytest.approx(found[name], abs=1e-4)
    handle = layers[1].mlp.gate.register_forward_hook(lambda m, i, o: (o[0], o[1], (o[2] + 1) % 8))
    changed = probe.compare(trained, rollout(tokens), P, mask)
    handle.remove()
    assert changed["topk_overlap"][1] < 0.7 and changed["act_norm_ratio"][0] == pytest.approx(1, abs=1e-4)
    chosen = torch.cat(trained.indices[2]).view(5, P + R, 2)
    stats, loads = probe.routing_stats(trained)
    assert loads[2] == pytest.approx(torch.bincount(chosen.flatten(), minlength=8).div(chosen.numel()).tolist())
    assert set(stats["router_entropy"]) == {1, 2} and all(
        0 < value <= 2.08 for value in stats["router_entropy"].values()
    )
    assert stats["moe_max_vio"][2] == pytest.approx(max(loads[2]) * 8 - 1, abs=1e-5)
    assert stats["moe_dead_frac"][2] == sum(load == 0 for load in loads[2]) / 8


def test_activation_statistics_join_forwards_and_keep_nan() -> None:
    layers = [torch.nn.Identity(), torch.nn.Identity()]
    with probe.Probe(layers).capture() as seen:
        for layer, value in ((0, 3.0), (0, -4.0), (1, nan), (1, inf)):
            layers[layer](torch.tensor([[[value, 0.0]]], dtype=torch.float16))
    found = probe.activation_stats(seen)
    assert found["act_absmax"] == pytest.approx([4.0, nan], nan_ok=True)
    assert found["act_norm"] == pytest.approx([2.5, nan], nan_ok=True)
    assert found["nonfinite_act_frac"] == [0, 0.5]
    assert not layers[0]._forward_hooks


def test_gradients_updates_and_moments_are_the_plain_formulas() -> None:
    a, b, c = (torch.nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0, 3.0))
    groups = {-1: [a], 0: [b, c]}
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])  # c has none
    found = probe.gradient_stats(groups)
    assert tuple(found) == ({0: 4.0}, 5.0, 0.0, pytest.approx(4 / 6))
    optimiser = torch.optim.SGD([a, b, c], lr=0.5, momentum=0.9)
    meter = probe.UpdateMeter(groups)
    meter.before()
    optimiser.step()
    ratios, norm = meter.after()
    assert ratios == {"update_ratio": {0: pytest.approx(2.0 / sqrt(8 + 18))}}
    assert norm == pytest.approx(sqrt(sum(float(p.detach().square().sum()) for p in (a, b, c))))
    assert probe.moments([optimiser], groups) == {"moment1_norm": {0: 4.0}}
    b.grad = torch.tensor([nan, inf])
    assert tuple(probe.gradient_stats(groups)) == (
        pytest.approx({0: nan}, nan_ok=True),
        pytest.approx(nan, nan_ok=True),
        2 / 6,
        3 / 6,
    )


def test_curvature_of_a_quadratic_is_its_matrix() -> None:
    x, y = torch.nn.Parameter(torch.tensor([1.0, 1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    state: dict[str, Any] = {}

    def loss() -> Any:
        return 0.5 * (4 * x[0] ** 2 + x[1] ** 2) + y.sum()

    before = torch.random.get_rng_state()
    for _ in range(10):
        top, along = curvature.top_eigenvalue(loss, [x, y], state)
    assert top == pytest.approx(4.0, abs=1e-3)
    assert along == pytest.approx((16 * 4 + 1) / (16 + 1 + 1))  # the gradient is (4, 1, 1)
    state["update"] = [torch.tensor([0.0, 2.0]), torch.zeros(1)]
    assert curvature.top_eigenvalue(loss, [x, y], state)[1] == pytest.approx(1.0)
    state["update"] = [torch.zeros(2), torch.zeros(1)]
    assert curvature.top_eigenvalue(lambda: y.sum(), [x, y], state) == (0.0, None)
    assert torch.equal(before, torch.random.get_rng_state()) and x.grad is None


# -- loops ------------------------------------------------------------------------------------------------------------
def test_verl_keys_become_canonical_columns() -> None:
    recorder = Recorder(None, "verl")
    backend = TrackingBackend(recorder)
    data = {"actor/grad_norm": 2.0, "critic/rewards/mean": 0.5, "my/own": 1, "actor/pg_loss": nan, "actor/loss": 3.0, "note": "x", "list": [1, 2]}  # fmt: skip
    backend.log(data=data, step=4)
    rows = {(row["signal"], row["stat"]): (row["value"], row["state"]) for row in recorder.table().to_pylist()}
    assert rows[("grad_norm", None)] == (2.0, "finite") and rows[("reward", None)] == (0.5, "finite")
    assert rows[("my/own", None)] == (1.0, "finite") and rows[("policy_loss", None)] == (None, "nan")
    assert rows[("actor/loss", None)] == (3.0, "finite") and len(rows) == 5


def test_hooks_record_any_torch_loop_and_the_trainer() -> None:
    model, recorder = _moe().train(), Recorder(None, "loop")
    optimiser = torch.optim.AdamW(model.parameters())
    callback = trainer_callback(recorder)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0)
    callback.on_train_begin(None, state, None, model=model, optimizer=optimiser)
    hooks = TorchRecorder(model, recorder, optimiser)
    for at, step in ((hooks, 1), (callback.hooks, 2)):
        with at.forward():
            model(torch.randint(0, 24, (2, 5)), labels=torch.randint(0, 24, (2, 5))).loss.backward()
        if at is hooks:
            hooks.before_step()
            optimiser.step()
            hooks.after_step(step, {"loss": 2.5})
        else:
            state.global_step = step - 1
            callback.on_pre_optimizer_step(None, state, None)
            optimiser.step()
            callback.on_optimizer_step(None, state, None)
            state.global_step = step
            callback.on_log(None, state, None, logs={"loss": 2.0, "grad_norm": 1.5})
            callback.on_log(None, state, None, logs={"train_runtime": 9.0, "train_loss": 2.25})
            callback.on_train_end(None, state, None)
    trace = trace_of(recorder.table(), {})
    assert (
        trace.frame.columns[Key("loss")].values == [2.5, 2.0] and trace.frame.columns[Key("grad_norm")].values[1] == 1.5
    )
    seen = {(key.signal, key.layer) for key in trace.detail.columns}
    dense = {
        "act_absmax",
        "act_norm",
        "nonfinite_act_frac",
        "grad_norm",
        "update_ratio",
        "moment1_norm",
        "moment2_norm",
    }
    routed = {"router_entropy", "moe_load_cv", "moe_max_vio", "moe_dead_frac", "expert_load"}
    assert seen == {(name, at) for name in dense for at in range(3)} | {(name, at) for name in routed for at in (1, 2)}
    assert all(len(column.values) == 2 for column in trace.detail.columns.values())


def test_a_bad_value_is_refused_with_its_name_and_costs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.arrows"
    with Recorder(path, "job") as recorder:
        recorder.log(1, {"loss": 1.0})
        for bad in ("text", [1], 10**400):
            with pytest.raises(InputError, match="job: loss at step 2: .*a value is one number"):
                recorder.log(2, {"loss": bad})  # type: ignore[dict-item]
        with pytest.raises(InputError, match="act_max at step 2"):
            recorder.log_layers(2, {"act_norm": [1.0, 2.0], "act_max": [1.0, "x"]})  # type: ignore[dict-item]
        with pytest.raises(InputError, match="give a number a layer"):
            recorder.log_layers(2, {"act_norm": 1.0})  # type: ignore[dict-item]
        with pytest.raises(InputError, match="whole numbers"):
            recorder.log(2.5, {"loss": 1.0})  # type: ignore[arg-type]
        with pytest.raises(InputError, match="axis"):
            recorder.log(2, {"loss": 1.0}, axis="nowhere")
        recorder.log(3, {"loss": 3.0})
    kept = recorder.table().to_pylist()
    assert [(row["step"], row["signal"]) for row in kept] == [
        (1, "loss"),
        (2, "act_norm"),
        (2, "act_norm"),
        (3, "loss"),
    ]
