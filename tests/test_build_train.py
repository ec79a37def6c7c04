"""Proxies of three families, built from saved models: transformers loads them whole, and they train under the lab's own loop."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the loop needs the extra `proxy`")
transformers = pytest.importorskip("transformers")

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.record import Recorder
from faultproxy.proxy.build import build, verify
from faultproxy.proxy.checkpoint import read_checkpoint
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.run import models
from faultproxy.proxy.run.config import ModelSpec, Program
from faultproxy.proxy.run.loop import Loop
from faultproxy.proxy.run.tasks import make_task
from faultproxy.proxy.source import open_source

SPECS = {
    "qwen3_moe": ModelSpec("qwen3_moe", layers=4, hidden=32, heads=2, kv_heads=1, width=16, experts=8, top_k=2),
    "mixtral": ModelSpec("mixtral", layers=3, hidden=32, heads=2, kv_heads=1, width=16, experts=8, top_k=2),
    "deepseek_v3": ModelSpec(
        "deepseek_v3",
        layers=4,
        hidden=32,
        heads=2,
        kv_heads=2,
        width=16,
        experts=8,
        top_k=2,
        groups=2,
        top_groups=1,
        dense_layers=1,
    ),
}


@pytest.fixture(autouse=True)
def _one_thread(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("FAULTPROXY_CACHE", str(tmp_path_factory.getbasetemp() / "warm"))


def saved(spec: ModelSpec, folder: Path) -> Path:
    task = make_task("reverse")
    models.build(spec, task.vocab, task.prompt_length + task.response_length, 0).save_pretrained(folder)
    return folder


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)


@pytest.mark.parametrize("family", list(SPECS))
@pytest.mark.parametrize("weights", ["original", "random"])
def test_a_built_proxy_loads_whole_and_trains_a_step_in_the_lab(tmp_path: Path, family: str, weights: str) -> None:
    source = saved(SPECS[family], tmp_path / "whole")
    checkpoint = read_checkpoint(open_source(str(source)))
    layers = (0, 1, 3) if SPECS[family].layers == 4 else (0, 2)
    made = build(checkpoint, Recipe(layers, experts=4, weights=weights), tmp_path / "proxy")
    assert verify(made.out, checkpoint, everything=True).compared == made.document["bytes"] - header(made.out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, info = load(made.out)
        assert (set(info["missing_keys"]), set(info["unexpected_keys"])) == (set(), set())
        assert len(models.decoder(model).layers) == len(layers)
        assert torch.isfinite(model(torch.arange(4, 10)[None]).logits).all()
        program = Program(
            "proxy",
            "reverse",
            ModelSpec(path=str(made.out)),
            prompts=2,
            group=2,
            entropy_coef=0.01,
            warmup_steps=1,
            warmup_batch=4,
        )
        recorder = Recorder(None, "test", {})
        Loop(program, 0, recorder, curvature=False).run(1)
    seen = {row["signal"]: row["value"] for row in recorder.table().to_pylist() if row["step"] == 1}
    assert seen["grad_norm"] > 0


def header(folder: Path) -> int:
    return sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in folder.glob("*.safetensors"))


def test_a_config_without_weights_is_built_by_transformers_and_the_same_each_time(tmp_path: Path) -> None:
    source = saved(SPECS["qwen3_moe"], tmp_path / "whole")
    (source / "model.safetensors").unlink()
    checkpoint = read_checkpoint(open_source(str(source)), weightless=True)
    made = [
        build(checkpoint, Recipe((0, 2), experts=4, weights="random", seed=3), tmp_path / name) for name in ("a", "b")
    ]
    _, info = load(made[0].out)
    assert (set(info["missing_keys"]), set(info["unexpected_keys"])) == (set(), set())
    assert json.loads((made[0].out / "config.json").read_text())["num_hidden_layers"] == 2
    files = [{path.name: path.read_bytes() for path in one.out.iterdir()} for one in made]
    assert files[0] == files[1]
    checkpoint.config["rms_norm_eps"] = [1]
    with pytest.raises(InputError, match="cannot build this model.*rms_norm_eps"):
        build(checkpoint, Recipe((0, 2), experts=4, weights="random"), tmp_path / "c")
