"""Logs of loops that no reader knows are read by the last-resort reader: the numbers, their steps, and what they mean."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.ingest.pairs import in_unit, scan
from faultproxy.analyzer.trace import NAN, Cell, Trace
from faultproxy.proxy.lab.writers import Run

FIXTURES = Path(__file__).parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import curves, faults, loops

ALL = {**loops.STYLES, **loops.LINES}
FAULT = 60


def _run(style: loops.Style, seed: int = 1) -> Run:
    return curves.pretrain(seed, 120) if "loss" in style.shown else curves.rl(seed, 120, critic="value_loss" in style.shown)  # fmt: skip


def _read(folder: Path, text: str) -> Trace:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    return read([str(path)])[0]


def _warning(trace: Trace) -> str:
    (found,) = [text for text in trace.warnings if "last-resort" in text]
    return found


def _share(style: loops.Style, run: Run, trace: Trace, every: int = 1) -> tuple[int, int]:
    """How many of the printed numbers were read, at their step, under their signal."""
    columns = {column.key.column: column for column in trace.frame.columns.values()}
    where = {step: row for row, step in enumerate(trace.frame.steps)}
    right = 0
    for row in run:
        for key in style.shown:
            column, at = columns.get(loops.COLUMNS[key]), where.get(int(row["step"]) * every)
            cell = column.cell(at) if column is not None and at is not None else None
            right += bool(cell and cell.value is not None and math.isclose(cell.value, row[key], rel_tol=6e-3, abs_tol=6e-5))  # fmt: skip
    return right, len(run) * len(style.shown)


@pytest.mark.parametrize("name", ALL)
def test_every_number_is_read_at_its_step_under_its_signal(name: str, tmp_path: Path) -> None:
    style = ALL[name]
    run = _run(style)
    trace = _read(tmp_path, style.write(run))
    right, printed = _share(style, run, trace, 1000 if "thousands" in name else 1)
    assert right >= 0.9 * printed
    assert max(trace.frame.segments) == 0 and trace.sources[0].rows == len(run)


def test_of_all_styles_nearly_every_number_is_read(tmp_path: Path) -> None:
    right = printed = 0
    for name, style in ALL.items():
        run = _run(style, seed=2)
        found, of = _share(style, run, _read(tmp_path, style.write(run)), 1000 if "thousands" in name else 1)
        right, printed = right + found, printed + of
    assert len(ALL) >= 13 and right >= 0.99 * printed


@pytest.mark.parametrize("name", ALL)
def test_the_fault_is_found_and_the_healthy_twin_stays_healthy(name: str, tmp_path: Path) -> None:
    style = ALL[name]
    every = 1000 if "thousands" in name else 1
    healthy = diagnose(_read(tmp_path, style.write(_run(style))))
    assert (healthy.verdict, healthy.failure_type) == ("healthy", "healthy")
    failed = diagnose(_read(tmp_path, style.write(faults.nonfinite(_run(style), FAULT))))
    assert failed.verdict == "failed" and failed.failure_type in ("nonfinite_loss", "nonfinite_gradient")
    assert failed.first_bad_step is not None and FAULT - 1 <= failed.first_bad_step // every <= FAULT


@pytest.mark.parametrize("name", loops.STYLES)
def test_what_was_read_is_said_with_how_sure_it_is(name: str, tmp_path: Path) -> None:
    run = _run(loops.STYLES[name])
    text = _warning(_read(tmp_path, loops.STYLES[name].write(run)))
    source = {"columns between bars": "the line", "dotted record below a head": "the line above", "epochs and batches": "epoch and batch"}  # fmt: skip
    lines = len(run) * (1 if "record" not in name else len(loops.STYLES[name].shown))
    names = len(loops.STYLES[name].shown)
    assert f"{lines} of {lines} metric lines, {names} of {names} names known, steps from {source[name]}" in text


# -- lines as loops in the wild print them ----------------------------------------------------------------------------
def _lines(template: str, count: int = 7) -> str:
    """`template` once a row; `<N>` is the row's number, `<N*k>` a multiple of it, `<0N>` three digits."""
    out = []
    for n in range(1, count + 1):
        text = template.replace("<N>", str(n)).replace("<0N>", f"{n:03}")
        for k in (10, 20, 50, 100, 128, 2048):
            text = text.replace(f"<N*{k}>", str(n * k))
        out.append(text + "\n")
    return "".join(out)


#: Name, one row, the step of row n over n, and what row 2 holds.
WILD = [
    ("CleanRL", "global_step=<N*128>, episodic_return=1<N>.0", 128, {"reward": 12.0}),
    ("detectron2", "[08/01 10:00:0<N> d2.utils.events]: eta: 0:12:30  iter: <N*20>  total_loss: 2.<N>  loss_cls: 1.1  time: 0.41  lr: 0.00<N>  max_mem: 4321M", 20, {"loss": 2.2, "lr": 0.002}),
    ("MMDetection", "2026-08-01 10:00:0<N>,123 - mmdet - INFO - Epoch [1][<N*50>/7330] lr: 2.00<N>e-05, eta: 1 day, 2:03:04, time: 0.61, loss_rpn_cls: 0.6<N>, loss: 1.<N>, grad_norm: 3.<N>", 50, {"loss": 1.2, "lr": 2.002e-5, "grad_norm": 3.2}),
    ("Keras", "Epoch <N>/10\n100/100 [==============================] - 12s 34ms/step - loss: 0.6<N> - accuracy: 0.5<N> - val_loss: 0.7<N>", 1, {"loss": 0.62, "accuracy": 0.52, "eval_loss": 0.72, "step_time": 0.034}),
    ("Caffe", "I0801 10:00:0<N>.123456 41234 solver.cpp:218] Iteration <N*100> (3.1 iter/s, 32.2s/100 iters), loss = 0.8<N>\nI0801 10:00:0<N>.123 41234 sgd_solver.cpp:105] Iteration <N*100>, lr = 0.0<N>", 100, {"loss": 0.82, "lr": 0.02}),
    ("OpenNMT", "[2026-08-01 10:00:0<N>,123 INFO] Step <N*50>/100000; acc:  <N>.50; ppl: 80.1<N>; xent: 9.0<N>; lr: 0.0000<N>; 1000/1200 tok/s;     2<N> sec", 50, {"perplexity": 80.12, "loss": 9.02, "lr": 2e-5}),
    ("llama2.c", "<N*10> | loss 3.8<N> | lr 1.<N>e-04 | 312.1<N>ms | mfu 12.3<N>%", 10, {"loss": 3.82, "lr": 1.2e-4, "mfu": 0.1232}),
    ("nanochat", "step 00<0N>/21400 (0.05%) | loss: 3.2<N> | grad norm: 0.31<N> | lrm: 1.00 | dt: 312.<N>ms | tok/sec: 1,234,56<N> | mfu: 48.1<N> | total time: 0.1<N>m", 1, {"loss": 3.22, "grad_norm": 0.312, "step_time": 0.3122, "tokens_per_s": 1234562.0}),
    ("Spinning Up", "---------------------------------------\n|             Epoch |               <N> |\n|      AverageEpRet |            <N>.5 |\n|            LossPi |         -0.0<N>1 |\n|             LossV |            4<N>.2 |\n|                KL |          0.00<N> |\n|           Entropy |           0.6<N> |\n---------------------------------------\n", 1, {"reward": 2.5, "policy_loss": -0.021, "critic_value_loss": 42.2, "kl_ref": 0.002, "entropy": 0.62}),
    ("Stable-Baselines3", "------------------------------------------\n| rollout/                |              |\n|    ep_rew_mean          | 1.<N>          |\n| time/                   |              |\n|    iterations           | <N>           |\n|    total_timesteps      | <N*2048>         |\n| train/                  |              |\n|    approx_kl            | 0.00<N> |\n|    clip_fraction        | 0.1<N>        |\n|    value_loss           | 4<N>           |\n------------------------------------------", 1, {"reward": 1.2, "kl_old": 0.002, "clip_frac": 0.12, "critic_value_loss": 42.0}),
    ("Tianshou", "Epoch #<N>: 1001it [00:0<N>, 512.3it/s, env_step=<N*100>, len=200, loss=0.3<N>, n/ep=1, n/st=10, rew=2<N>.00]", 1, {"policy_loss": 0.32, "reward": 22.0}),
    ("a head that comes last", "2019-02-03 08:03:2<N>,062 INFO      epoch 3/4\n2019-02-03 08:03:3<N>,499 INFO     steps_per_s=443.39, reward_per_sec=-0.0046, loss=0.22<N>, entropy=7.48<N>, advantage=0.12<N>\n2019-02-03 08:03:36,767 INFO     iteration <N>/10000", 1, {"policy_loss": 0.222, "entropy": 7.482, "advantage": 0.122}),
    ("rlpyt", "2020-12-08 21:40:5<N>.116393  | itr #<N*100> Diagnostics/StepsPerSecond    45.1\n2020-12-08 21:40:5<N>.118740  | lossAverage               0.0<N>\n2020-12-08 21:40:5<N>.120327  | gradNormAverage           0.02<N>", 1, {"loss": 0.02, "grad_norm": 0.022}),
    ("timm", "Train: 0 [<N*50>/1251 (  <N>%)]  Loss: 6.9<N> (6.94)  Time: 0.41<N>s, 1234.5/s  (0.45s, 1100.2/s)  LR: 1.00<N>e-06  Data: 0.012 (0.05)", 50, {"loss": 6.92, "lr": 1.002e-6}),
    ("the ImageNet example", "Epoch: [0][<N*10>/5005]\tTime  0.4<N> ( 0.51)\tData  0.01 ( 0.02)\tLoss 6.9<N>e+00 (6.95e+00)\tAcc@1   0.<N>0 (  0.12)", 10, {"loss": 6.92}),
    ("fastText", "Progress:  <N>.2% words/sec/thread:   1234<N> lr:  0.09<N> avg.loss:  2.3<N> ETA:   0h 1m 2s", 1, {"loss": 2.32, "lr": 0.092}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "step", "second"), WILD, ids=[entry[0] for entry in WILD])
def test_lines_of_loops_in_the_wild(name: str, row: str, step: int, second: dict[str, float], tmp_path: Path) -> None:
    trace = _read(tmp_path, _lines(row))
    assert trace.frame.steps == [n * step for n in range(1, 8)]
    columns = {column.key.column: column for column in trace.frame.columns.values()}
    for column, value in second.items():
        assert columns[column].values[1] == pytest.approx(value), column


# -- what is no metric line -------------------------------------------------------------------------------------------
NO_METRICS = {
    "prose": "The paper reports a loss of 2.31 after 100 steps. We set the learning rate to 1e-4 and got accuracy 0.81.\nReward was 0.5 on average, see section 3.2. Version 2.0 improves the KL by 10 percent.\n",
    "a YAML config": "model:\n  hidden_size: 4096\noptim:\n  lr: 1.0e-4\n  weight_decay: 0.1\nkl_coef: 0.001\nclip_ratio: 0.2\nentropy_coeff: 0\nloss_scale: 128\nmax_grad_norm: 1.0\nreward: 1\n",
    "Hydra overrides": "python train.py trainer.optim.lr=1e-4 algorithm.kl_coef=0.001 data.max_response_length=1024 actor.loss=1 actor.clip_ratio=0.2\n",
    "a namespace": "Namespace(lr=0.0001, loss_scale=0, kl=0.1, clip_ratio=0.2, step=10, grad_norm=1.0, reward=1)\n",
    "a command line": "torchrun --nproc 8 train.py --lr 1e-4 --loss-scale 128 --kl 0.1 --steps 100 --reward 1 --acc 0.5\n",
    "pip": "Collecting torch==2.1.0\n  Downloading torch-2.1.0-cp311-cp311-manylinux1_x86_64.whl (670.2 MB)\n     670.2/670.2 MB 2.1 MB/s eta 0:00:00\nSuccessfully installed torch-2.1.0 numpy-1.26.0\n",
    "a model's size": "total parameters: 7,241,732,096\ntrainable: 0.12%\nepoch: 3\nbatch size: 64\nlearning rate: 1e-4\nseed: 1\n",
    "nvidia-smi": "| N/A   34C    P0    64W / 400W |      0MiB / 81251MiB |      0%      Default |\n" * 5,
    "the kernel's log": "".join(f"[{n}.123456] usb 1-1: new high-speed USB device number {n} using xhci_hcd\n" for n in range(20)),
    "code": "for step in range(100):\n    lr = schedule(step, 100)\n    if loss > 2.0 and step > 10:\n        raise ValueError('loss 2.0 at 10')\n",
    "memory before training": "Before critic FSDP, memory allocated (GB): 0.0, memory reserved (GB): 0.0\nAfter critic FSDP, memory allocated (GB): 5.7, memory reserved (GB): 7.9\nAfter rollout, memory allocated (GB): 14.4, memory reserved (GB): 16.6\n",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_METRICS)
def test_what_is_no_metric_line_gives_no_row(name: str, tmp_path: Path) -> None:
    try:
        trace = _read(tmp_path, NO_METRICS[name])
    except InputError:
        return
    assert len(trace.frame) == 0


def test_settings_beside_metrics_are_not_read_as_metrics(tmp_path: Path) -> None:
    style = loops.STYLES["columns between bars"]
    trace = _read(tmp_path, NO_METRICS["a YAML config"] + NO_METRICS["a command line"] + style.write(_run(style)))
    assert trace.frame.steps == list(range(1, 121))
    assert "max_grad_norm" not in {column.raw_key for column in trace.frame.columns.values()}


# -- numbers and units ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("loss nan", {"loss": NAN}),
        ("loss nan gnorm inf lr 1e-4", {"loss": NAN, "gnorm": "pos_inf", "lr": 1e-4}),
        ("Grad Norm inf 1.78s/it", {"s/it": 1.78, "Grad Norm": "pos_inf"}), ("loss=-inf", {"loss": "neg_inf"}), ("loss: 1.2e-3,", {"loss": 1.2e-3}), ("reward: 1, kl: .5", {"reward": 1.0, "kl": 0.5}),
        ("tokens 1,234,567 seen", {"tokens": 1234567.0}), ("loss -> 2.5 (2.6)", {"loss": 2.5}), ("'loss': '2.5'", {"loss": 2.5}),
        ("loss tensor(2.5, device='cuda:0')", {"loss": 2.5}), ("The loss is 2.5.", {"The loss is": 2.5}), ("torch 2.1.0", {}), ("info", {}),
        ("2026-08-01T10:00:00.123Z host", {}), ("model.py:921 - x", {}), ("eta 0:01:02", {}), ("[rank 3] pid 4242", {}),
    ],
)  # fmt: skip
def test_numbers_of_a_line(text: str, wanted: dict[str, object]) -> None:
    found = scan(text)
    got = {p.key: p.cell.value if p.cell.value is not None else p.cell.state for p in found.pairs} if found else {}
    assert got == wanted


@pytest.mark.parametrize(
    ("value", "unit", "of", "wanted"),
    [(12.0, "ms", "s", 0.012), (2.0, "min", "s", 120.0), (45.0, "%", "fraction", 0.45), (512.0, "MiB", "GiB", 0.5), (1.2, "GiB", "GiB", 1.2), (4.5, "k", "tokens/s", 4500.0), (4.5, "ktok/s", "tokens/s", 4500.0), (3.0, "s", "s", 3.0), (3.0, "", "1", 3.0)],
)  # fmt: skip
def test_units_are_those_of_the_signal(value: float, unit: str, of: str, wanted: float) -> None:
    assert in_unit(Cell(value), unit, of).value == pytest.approx(wanted)
    assert in_unit(Cell(None, NAN), unit, of).state == NAN


@pytest.mark.parametrize(
    "piece",
    ["loss ", "a=1 ", "1/2 ", "a.b", "....", "-- ", "'x': ", "12:34 ", "k tok/s ", "(1", "a b c d ", "2026-08-01 "],
)
def test_a_line_is_scanned_in_time_linear_in_it(piece: str) -> None:
    def cost(size: int) -> float:
        text = (piece * size)[:size]
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            scan(text)
            times.append(time.perf_counter() - begun)
        return min(times)

    assert cost(4000) < 12 * cost(1000) + 0.01


def test_a_value_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    lines = [f"Update {n}\n  policy loss: 0.0{n}\n  reward: 0.5{n}\n  entropy: 0.4{n}\n" for n in range(1, 30)]
    lines.insert(10, "chatter\n" * 20 + "  reward: 0.9\n")  # a metric line far from any head
    trace = _read(tmp_path, "".join(lines))
    assert trace.frame.steps == list(range(1, 30)) and trace.sources[0].unparsed == 1
    assert "87 of 88 metric lines" in _warning(trace)
