"""The calibration table: counted from a model's routers, written and read back, taken from a trace, and refused when crafted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import faultproxy
from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.choose.calibration import (
    KEY,
    Calibration,
    Routing,
    read_calibration,
    write_calibration,
)


def table() -> Calibration:
    rng = np.random.default_rng(0)
    layers = {
        n: Routing(
            rng.integers(0, 9, 4).astype(float),
            rng.random(4),
            rng.integers(0, 9, (4, 4)).astype(float),
            rng.random((4, 3)),
        )
        for n in (1, 3)
    }
    return Calibration(layers, 77, "x")


def write(path: Path, metadata: Any = None, **columns: Any) -> Path:
    """A table of one layer and two experts, with some columns replaced."""
    floats = pa.list_(pa.float32())
    cells = {"layer": pa.array([0, 0], pa.int32()), "expert": pa.array([0, 1], pa.int32()), "frequency": pa.array([1.0, 2.0]),
             "gate_norm": pa.array([1.0, 2.0]), "together": pa.array([[0, 1], [1, 0]], floats), "prototype": pa.array([[1], [2]], floats)}  # fmt: skip
    made = pa.table({name: column for name, column in (cells | columns).items() if column is not None})
    head = {"schema": 1, "tokens": 5} if metadata is None else metadata
    pq.write_table(made.replace_schema_metadata({KEY: head if isinstance(head, str) else json.dumps(head)}), path)
    return path


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    wanted = table()
    write_calibration(wanted, tmp_path / "t.parquet")
    found = read_calibration(tmp_path / "t.parquet")
    assert (found.tokens, found.layers.keys()) == (77, wanted.layers.keys())
    for n, routing in wanted.layers.items():
        for name in ("frequency", "gate_norm", "together", "prototype"):
            np.testing.assert_array_equal(
                getattr(found.layers[n], name),
                getattr(routing, name).astype(np.float32 if name in ("together", "prototype") else float),
            )
    with pytest.raises(InputError, match="exists already"):
        write_calibration(wanted, tmp_path / "t.parquet")


def test_what_was_not_counted_is_absent(tmp_path: Path) -> None:
    write_calibration(Calibration({0: Routing(np.array([1.0, 2.0]))}, 3, "x"), tmp_path / "t.parquet")
    found = read_calibration(tmp_path / "t.parquet").layers[0]
    assert (found.gate_norm, found.together, found.prototype) == (None, None, None)


FLOATS = pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"frequency": pa.array([1.0, float("nan")])}, "1 rows with a value that is missing, negative, or not finite"),
        ({"frequency": pa.array([-1.0, 1.0])}, "1 rows with a value"),
        ({"gate_norm": pa.array([float("inf"), 1.0])}, "1 rows with a value"),
        ({"layer": pa.array([-1, 0], pa.int32())}, "1 rows with a value"),
        ({"together": pa.array([[0, float("nan")], [1, 0]], FLOATS)}, "1 rows with a value"),
        ({"prototype": pa.array([[None], [1]], FLOATS)}, "1 rows with a value"),
        ({"together": pa.array([[0], [1]], FLOATS)}, "together of unequal or wrong length"),
        ({"prototype": pa.array([[1], [1, 2]], FLOATS)}, "prototype of unequal or wrong length"),
        ({"expert": pa.array([0, 2], pa.int32())}, "not experts 0, 1, 2, ... once each"),
        ({"expert": pa.array([0, 0], pa.int32())}, "not experts 0, 1, 2, ... once each"),
        ({"frequency": pa.array([1, 2])}, "lacks frequency DOUBLE"),
        ({"together": None}, r"lacks together FLOAT\[\]"),
        ({"metadata": {"schema": 2, "tokens": 1}}, "no calibration table of schema 1"),
        ({"metadata": "[" * 9000}, "no calibration table of schema 1"),
        ({"metadata": {"schema": 1, "tokens": "many"}}, "no calibration table of schema 1"),
    ],
)
def test_a_crafted_table_is_refused_with_the_reason(tmp_path: Path, columns: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_calibration(write(tmp_path / "t.parquet", **columns))


def test_a_table_of_more_numbers_than_any_model_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultproxy.proxy.choose.calibration.MAX_NUMBERS", 1000)
    lists = pa.array([np.zeros(501, np.float32)] * 2, FLOATS)
    with pytest.raises(InputError, match="1000 numbers"):
        read_calibration(write(tmp_path / "t.parquet", prototype=lists))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_calibration(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="no such file"):
        read_calibration(tmp_path / "absent.parquet")


def test_a_trace_that_logged_expert_loads_is_a_table_of_frequencies(tmp_path: Path) -> None:
    rows = [
        {"signal": "expert_load", "state": "finite", "layer": layer, "expert": expert, "value": 0.1 * (expert + step) * layer, "stat": stat}
        for layer in (1, 2) for expert in range(3) for step in (1, 2) for stat in (None, "max")
    ]  # fmt: skip
    rows += [{**rows[-1], "signal": "act_norm", "stat": None}, {**rows[0], "value": None, "state": "nan"}]
    path = tmp_path / "run.trace"
    path.mkdir()
    types = {
        "signal": pa.string(),
        "state": pa.string(),
        "layer": pa.int16(),
        "expert": pa.int16(),
        "value": pa.float64(),
        "stat": pa.string(),
        "module": pa.string(),
    }
    for row in rows:  # the maximum over ranks is no load
        row["value"] = 99.0 if row["stat"] == "max" else row["value"]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(types.items()))), path / "values.parquet")
    found = read_calibration(path)
    assert found.layers.keys() == {1, 2}
    np.testing.assert_allclose(found.layers[2].frequency, [0.3, 0.5, 0.7])
    assert found.layers[1].gate_norm is None


torch = pytest.importorskip("torch")


def tiny() -> Any:
    from faultproxy.proxy.run.config import ModelSpec
    from faultproxy.proxy.run.models import build

    return build(ModelSpec(layers=2, hidden=16, width=8, experts=4, top_k=2), 32, 64, 0)


def test_counts_are_those_of_each_expert_run_on_its_own() -> None:
    from faultproxy.proxy.choose.collect import collect
    from faultproxy.proxy.run import models

    model = tiny()
    tokens = torch.arange(40).view(2, 20) % 32
    found = collect(model, [tokens])
    seen: dict[int, Any] = {}
    layers = model.model.layers
    banks, routers = models.experts(layers), models.routers(layers)
    handles = [bank.register_forward_pre_hook(lambda _, args, n=n: seen.update({n: args})) for n, bank in banks.items()]
    with torch.no_grad():
        model(input_ids=tokens)
    for handle in handles:
        handle.remove()
    assert found.tokens == 40
    assert found.layers.keys() == routers.keys()
    for n, (hidden, index, weights) in seen.items():
        hit = torch.nn.functional.one_hot(index, 4).sum(1).double()
        np.testing.assert_array_equal(found.layers[n].frequency, hit.sum(0))
        together = (hit.T @ hit).numpy()
        np.fill_diagonal(together, 0)
        np.testing.assert_array_equal(found.layers[n].together, together)
        for e in range(4):
            rows, places = torch.where(index == e)
            gate, up = (hidden[rows] @ banks[n].gate_up_proj[e].T).chunk(2, -1)
            out = (torch.nn.functional.silu(gate) * up) @ banks[n].down_proj[e].T
            wanted = float((out.norm(dim=-1) * weights[rows, places]).sum().detach())
            assert found.layers[n].gate_norm[e] == pytest.approx(wanted, rel=1e-4)
            np.testing.assert_allclose(found.layers[n].prototype[e], hidden[rows].mean(0).detach(), atol=1e-5)


def test_a_model_without_experts_is_refused() -> None:
    from faultproxy.proxy.choose.collect import collect
    from faultproxy.proxy.run.config import ModelSpec
    from faultproxy.proxy.run.models import build

    model = build(ModelSpec("llama", layers=1, hidden=16), 32, 64, 0)
    with pytest.raises(InputError, match="no experts that are given what a router chose"):
        collect(model, [torch.zeros(1, 4, dtype=torch.long)])
    with pytest.raises(InputError, match="no text"):
        collect(tiny(), [])


def test_calibrate_counts_texts_and_json_lines_and_stops_at_the_tokens_asked_for(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(["<unk>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(tmp_path / "model")
    tiny().save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("a b c\nb\n\nc c c\n")
    rows = [{"prompt": "a b", "response": "c"}, {"messages": [{"role": "user", "content": "c a"}]}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    asked = [
        "proxy",
        "calibrate",
        str(tmp_path / "model"),
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.jsonl"),
        "-o",
        str(tmp_path / "t.parquet"),
    ]
    done = CliRunner().invoke(faultproxy, asked)
    assert done.exit_code == 0, done.output
    assert "t.parquet: 12 tokens in 2 layers" in done.stdout
    assert read_calibration(tmp_path / "t.parquet").layers[0].frequency.sum() == 12 * 2
    done = CliRunner().invoke(faultproxy, [*asked, "--force", "--tokens", "5", "--format", "json"])
    assert json.loads(done.stdout)["tokens"] == 5
