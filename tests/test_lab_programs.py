"""The lab's tasks are what they say, and its programs differ in everything that a classifier must not depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch")

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.lab.programs import program, programs
from faultproxy.proxy.run.config import BOS, EOS, FIRST_SYMBOL, PAD, SEP, VARIED
from faultproxy.proxy.run.items import Items
from faultproxy.proxy.run.tasks import TASKS, make_task

TEXTS = {"markov", "induction", "progression"}
LABELS = {"majority", "order", "motif"}
CIPHER = torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist()


def number(digits: list[int], base: int) -> int:
    return int("".join(map(str, digits)), base)


def written(value: int, base: int) -> list[int]:
    return [value] if value < base else [*written(value // base, base), value % base]


def closed(brackets: list[int]) -> list[int]:
    stack: list[int] = []
    for value in brackets:
        if value < 3:
            stack.append(value)
        else:
            assert stack.pop() == value - 3
    return [3 + value for value in reversed(stack)]


def first(values: list[int]) -> list[int]:
    return list(dict.fromkeys(values))


def best(values: list[int]) -> int:
    return min(values, key=lambda value: (-values.count(value), value))


#: What each puzzle asks, in plain Python: values of the prompt (-1: separator) -> values of the answer.
SOLVED: dict[str, Callable[[list[int]], list[int]]] = {
    "copy": lambda v: v,
    "successor": lambda v: [(x + 1) % 12 for x in v],
    "cipher": lambda v: [CIPHER[x] for x in v],
    "reverse": lambda v: v[::-1],
    "sort": sorted,
    "parity": lambda v: [x % 2 for x in accumulate(v)],
    "rotate": lambda v: (v[1:] * 2)[v[0] : v[0] + 4],
    "interleave": lambda v: [x for pair in zip(v[:3], v[4:], strict=True) for x in pair],
    "dedupe": first,
    "below": lambda v: [x for x in v[1:] if x < v[0]],
    "repeat": lambda v: v[:2] * (v[2] + 1),
    "brackets": closed,
    "lookup": lambda v: [dict(zip(v[0:6:2], v[1:6:2], strict=True))[v[6]]],
    "maximum": lambda v: [max(v)],
    "tally": lambda v: [v[1:].count(v[0])],
    "add_mod": lambda v: [sum(v) % 11],
    "add": lambda v: written(number(v[:2], 5) + number(v[3:], 5), 5),
    "subtract": lambda v: written(number(v[:2], 6) - number(v[3:], 6), 6),
    "chain": lambda v: list(
        accumulate([v[0], *zip(v[1::2], v[2::2], strict=True)], lambda t, p: (t + (-p[1] if p[0] == 8 else p[1])) % 7)
    )[1:],
    "recurrence": lambda v: [(v[1] + v[2]) % 9, (v[1] + 2 * v[2]) % 9, (2 * v[1] + 3 * v[2]) % 9, (3 * v[1] + 5 * v[2]) % 9],
    "majority": lambda v: [best(v)],
    "order": lambda v: [int(v.index(1) < v.index(0))],
    "motif": lambda v: [min(2, "".join(map(str, v)).count("01"))],
}  # fmt: skip


def values(row: list[int], end: int) -> list[int]:
    return [
        token - FIRST_SYMBOL
        for token in row[: row.index(end, len(row) - 1 if end == SEP else 0)]
        if token not in (PAD, BOS)
    ]


def test_every_puzzle_has_a_plain_solution() -> None:
    assert set(TASKS) == {*SOLVED, *TEXTS, "count_up"}
    assert len(set(SOLVED) - LABELS) >= 14


@pytest.mark.parametrize("name", SOLVED)
def test_the_answer_is_what_the_puzzle_asks(name: str) -> None:
    items = make_task(name).sample(200, torch.Generator().manual_seed(3))
    for asked, answered in zip(items.prompts.tolist(), items.answers.tolist(), strict=True):
        assert SOLVED[name](values(asked, SEP)) == values(answered, EOS)


@pytest.mark.parametrize("name", TASKS)
def test_tokens_are_packed_as_the_loop_expects(name: str) -> None:
    task = make_task(name)
    items = task.sample(200, torch.Generator().manual_seed(4))
    assert items.prompts.shape == (200, task.prompt_length) and items.answers.shape == (200, task.response_length)
    assert task.prompt_length <= 12 and 2 <= task.response_length <= 16 and task.vocab <= 64
    assert (
        int(items.prompts.max()) < task.vocab and int(items.answers.max()) < FIRST_SYMBOL + task.symbols <= task.vocab
    )
    assert (items.prompts[:, -1] == (BOS if name in TEXTS else SEP)).all()
    ended = (items.answers == EOS).int().cumsum(1)
    assert (ended[:, -1] == 1).all() and (items.answers[:, 0] >= FIRST_SYMBOL).all()
    assert ((items.answers == PAD) == ((ended == 1) & (items.answers != EOS))).all()
    again = task.sample(200, torch.Generator().manual_seed(4))
    assert torch.equal(items.prompts, again.prompts) and torch.equal(items.answers, again.answers)


@pytest.mark.parametrize("name", TASKS)
def test_a_corrupted_answer_is_wrong_and_as_long(name: str) -> None:
    task = make_task(name)
    items = task.sample(200, torch.Generator().manual_seed(5))
    mask, wrong = items.answers != PAD, task.corrupt(items, torch.Generator().manual_seed(6))
    assert torch.equal(wrong == PAD, ~mask) and torch.equal(wrong == EOS, items.answers == EOS)
    assert (wrong != items.answers).any(1).all() and int(wrong.max()) < task.vocab
    right = task.reward(items, items.answers, mask)
    assert (right > task.reward(items, wrong, mask)).float().mean() > (0.6 if name == "count_up" else 0.99)
    assert (right == 1).all() or name == "count_up"


def test_prefix_credit_counts_tokens_before_the_first_error_and_wants_the_right_length() -> None:
    task = make_task("copy", length=3, least=3)
    items = Items(torch.tensor([[5, 6, 7, SEP]]).expand(5, 4), torch.tensor([[5, 6, 7, EOS]]).expand(5, 4))
    said = torch.tensor([[5, 6, 7, EOS], [5, 6, 7, 8], [5, 9, 7, EOS], [9, 6, 7, EOS], [5, 6, EOS, 7]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    assert task.reward(items, said, mask).tolist() == [1.0, 0.75, 0.25, 0.0, 0.5]
    assert make_task("copy", length=3, least=3, credit="exact").reward(items, said, mask).tolist() == [1, 0, 0, 0, 0]


def test_counting_further_than_shown_earns_more() -> None:
    task = make_task("count_up", symbols=12, length=4, shown=1)
    items = Items(torch.tensor([[12, 13, 14, SEP]]).expand(3, 4), torch.tensor([[15, EOS, 0, 0, 0]]).expand(3, 5))
    said = torch.tensor([[15, EOS, 0, 0, 0], [15, 4, 5, EOS, 0], [15, 4, 5, 6, EOS]])
    assert task.reward(items, said, said != PAD).tolist() == [0.25, 0.75, 1.0]


def test_answers_of_one_prompt_lie_together() -> None:
    items = make_task("sort").sample(2, torch.Generator().manual_seed(0)).repeat(3)
    assert len(items) == 6 and torch.equal(items.prompts[0], items.prompts[2])
    assert torch.equal(items.rows(torch.tensor([3])).answers, items.rows(slice(5, 6)).answers)


def test_wrong_names_and_sizes_say_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"'sorted' is no task; did you mean sort.*\?"):
        make_task("sorted")
    with pytest.raises(InputError, match="task sort: unknown size; allowed are symbols, length, credit"):
        make_task("sort", size=3)
    with pytest.raises(InputError, match="allowed are exact, prefix, length"):
        make_task("sort", credit="half")
    with pytest.raises(InputError, match=r"did you mean .*sort-qwen3moe-grpo.*faultproxy lab list"):
        program("sort-qwen3moe-gprpo")


#: What the set of programs must hold: tag or a test of a program -> at least how many.
LEAST = {
    "rl": 28, "grpo": 12, "dapo": 3, "dr_grpo": 3, "gspo": 3, "rloo": 3, "ppo": 3, "pretrain": 3, "sft": 3, "classify": 2, "dpo": 3,
    "sgd": 3, "muon": 3, "bf16": 5, "fp16": 6, "dp": 8, "stale": 3, "replay": 2, "deep": 6, "epochs": 4, "groups": 4, "shared": 4,
    "aux": 5, "qwen3_moe": 5, "mixtral": 5, "deepseek_v3": 5, "olmoe": 4, "qwen3": 4, "llama": 5, "dense": 10, "kl": 12,
}  # fmt: skip


def test_programs_cover_every_axis() -> None:
    counts = Counter(tag for one in programs() for tag in one.tags)
    assert len(programs()) >= 44
    assert {tag: counts[tag] for tag, least in LEAST.items() if counts[tag] < least} == {}
    assert {one.model.experts for one in programs()} == {0, 4, 8, 16, 32, 64}
    assert {one.model.top_k for one in programs() if one.model.experts} == {1, 2, 4}
    assert {one.model.layers for one in programs()} >= {3, 4, 5, 6, 8, 10, 12, 16}
    assert {one.ranks for one in programs()} == {1, 2, 3, 4}
    assert sum(one.importance_cap is not None for one in programs()) >= 3
    assert sum(one.trainer_compute == "fp16" and one.rl for one in programs()) >= 3


@pytest.mark.parametrize("one", programs(), ids=lambda one: one.name)
def test_a_program_is_consistent(one: object) -> None:
    one = program(one.name)  # type: ignore[attr-defined]
    plain = [word.replace("_", "") for word in (one.task, one.model.family, one.algorithm)]
    assert one.name.split("-")[:3] == plain
    task = make_task(one.task, **one.task_args)
    kind = "pretrain" if one.task in TEXTS else "classify" if one.task in LABELS else None
    assert kind == one.algorithm if kind else one.algorithm not in ("pretrain", "classify")
    batch = one.prompts * one.group
    assert 24 <= batch <= 64 and batch % (one.ranks * one.accumulate * one.minibatches) == 0
    assert task.prompt_length <= 12 and task.response_length <= 16 and 30 <= one.steps <= 36
    assert one.rl or one.group == 1
    assert one.model.hidden % (2 * one.model.heads) == 0 and one.model.heads % one.model.kv_heads == 0


def test_no_two_programs_train_the_same_model_on_the_same_task() -> None:
    seen = Counter((one.task, str(sorted(one.task_args.items())), one.model) for one in programs())
    assert max(seen.values()) == 1


def test_tasks_called_varied_are_those_whose_answers_differ_in_length() -> None:
    found = set()
    for one in programs():
        items = make_task(one.task, **one.task_args).sample(64, torch.Generator().manual_seed(0))
        if len({int(length) for length in (items.answers != PAD).sum(1)}) > 1:
            found.add(one.task)
    assert found == VARIED
