"""Redaction: 100 planted secrets of 20 kinds in lines as jobs print them, made at run time, and lines that must stay."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from faultproxy.analyzer.ticket.redact import Redactor, patterns, redact, table

ROOT = Path(__file__).parent.parent
ALNUM, HEX = string.ascii_letters + string.digits, "0123456789abcdef"
Maker = Callable[[random.Random], str]


def _of(alphabet: str, length: int, prefix: str = "") -> Maker:
    return lambda rng: prefix + "".join(rng.choice(alphabet) for _ in range(length))


def _base64(rng: random.Random, value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _jwt(rng: random.Random) -> str:
    return f"{_base64(rng, {'alg': 'HS256'})}.{_base64(rng, {'sub': rng.random()})}.{_of(ALNUM, 43)(rng)}"


def _pem(rng: random.Random) -> str:
    dashes = "-" * 5
    body = "\n".join(_of(ALNUM + "+/", 64)(rng) for _ in range(12))
    return f"{dashes}BEGIN RSA PRIVATE KEY{dashes}\n{body}\n{dashes}END RSA PRIVATE KEY{dashes}"


def _dotted(rng: random.Random) -> str:
    return ".".join(str(rng.randint(11, 126)) for _ in range(4))


def _name(rng: random.Random) -> str:
    return rng.choice(["li", "zhang", "okafor", "meyer", "novak"]) + "." + _of(string.ascii_lowercase, 4)(rng)


#: Kind to how its secrets are made, and to lines that they stand in.
KINDS: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "aws key id": (_of(string.ascii_uppercase + "234567", 16, "AK" + "IA"), ("botocore: using {} from env", "'AccessKeyId': '{}'")),
    "aws secret": (_of(ALNUM + "+/", 40), ("aws_secret_access_key = {}", 'AWS_SECRET_ACCESS_KEY="{}"')),
    "aliyun": (_of(ALNUM, 20, "LT" + "AI5t"), ("oss2.Auth({}, ...)", "OSS_ACCESS_KEY_ID={}")),
    "huawei secret": (_of(ALNUM, 40), ("OBS_SECRET_ACCESS_KEY={}", "HUAWEICLOUD_SDK_SK: {}", "{{'ak': 'x', 'sk': '{}'}}")),
    "google": (_of(ALNUM + "_-", 35, "AI" + "za"), ("GOOGLE_API_KEY={}", "GET https://maps.googleapis.com/x?key={} 403")),
    "github": (_of(ALNUM, 36, "gh" + "p_"), ("remote: https://x:{}@github.com/a/b", "\x1b[31m{}\x1b[0m was rejected")),
    "gitlab": (_of(ALNUM + "_-", 20, "gl" + "pat-"), ("PRIVATE-TOKEN: {}", "git clone failed with {}")),
    "hugging face": (_of(string.ascii_letters, 34, "h" + "f_"), ("HF_TOKEN={}", "login(token='{}')")),
    "wandb": (_of(HEX, 40), ("WANDB_API_KEY={}", "wandb login {}", "wandb: appending key for api.wandb.ai to netrc: {}")),
    "openai": (_of(ALNUM + "-_", 48, "s" + "k-proj-"), ("Incorrect API key provided: {}.", "judge(api_key='{}')")),
    "slack": (_of(ALNUM, 24, "xo" + "xb-1234567890-"), ("slack_token={}", "invalid_auth for {}")),
    "jwt": (_jwt, ("Authorization: Bearer {}", "kubectl --token={} get pods", '{{"id_token": "{}"}}')),
    "private key": (_pem, ("loaded {} from disk",)),
    "password": (_of(ALNUM + "!#%", 11), ("password={}", '"db_password": "{}",', "mysql --password {} -h x", "redis://:{}@cache:6379/0", "Server=x;Uid=a;Pwd={};")),
    "bearer": (_of(ALNUM + "._", 32), ("authorization: Bearer {}", "-H 'Authorization: token {}'")),
    "address": (_dotted, ("connect to {}:29500 failed", "MASTER_ADDR={}", "Ray(pid=12, ip={})", "NCCL INFO NET/Socket : Using [0]eth0:{}<0>")),
    "address, v6": (lambda rng: f"fd00:{rng.randint(256, 4095):x}:0:1::{rng.randint(256, 4095):x}", ("[{}]:29500 refused", "bind {} port 1")),
    "machine": (lambda rng: f"gpu-a100-{rng.randint(1, 999):03d}", ("srun: error: {}: task 3: Killed", "hostname={}", "{}:4121:4410 [0] NCCL INFO x", "host      : {}", "[{}]:29500 closed")),
    "full name": (lambda rng: f"n{rng.randint(1, 999)}.train.acme-lab.com", ("https://{}:8443/v1 timed out", "tcp://{}:23456", "ping {} failed")),
    "person": (_name, ("/home/{}/run", "C:\\Users\\{}\\run", "/Users/{}/x.py", "USER={}", "mail {}@acme.io")),
}  # fmt: skip
#: What a log is full of; none of it may go.
INNOCENT = """
step:12 - actor/pg_loss:0.1 - val-core/gsm8k/acc/mean@8:0.31 - best@16:0.4 - maj@16 - pass@1 0.5
total_tokens: 123456 num_tokens=512 max_tokens=2048 token_level_scores eos_token='</s>' pad_token_id=151643 loss_agg_mode: token-mean
tokenizer: Qwen/Qwen3-30B-A3B tokens per second: 1234.5 tokens/s=88123.2 prompt_tokens=512
nvidia-cudnn-cu12==9.1.0.70 CUDA version 12.4.1.3 cuDNN version: 9.1.0.70 torch-2.9.0.1
c10::Error std::vector at::native 12:34:56 2026-11-30T12:00:00+00:00 [rank0]:[E1130 12:34:56.789 ProcessGroupNCCL.cpp:629]
see https://pytorch.org/docs/stable/notes/cuda.html and https://huggingface.co/Qwen/Qwen3-30B-A3B and https://docs.nvidia.com/x
user: What is the password of the secret agent? assistant: I do not know.
commit 0123456789abcdef0123456789abcdef01234567 sha256 e4c3f9668e0ec8f8f0fcca39763a3a7677f5eaf5c6b5bb0fdae9abd858a0ed93
model.layers.0.self_attn.q_proj.weight torch.distributed.run threading.local
node_rank=0 nnodes=4 rdzv_endpoint=localhost:29500 127.0.0.1:8000 0.0.0.0 host memory: 12 GB key: value api_version: 2 GPU-0
password: None api_key=None token: null --token $HF_TOKEN secret=${SECRET} auth_token: ***
""".strip().splitlines()


def planted(seed: int = 7) -> list[tuple[str, str, str]]:
    """(kind, secret, line), 5 of each kind."""
    rng = random.Random(seed)
    found = []
    for kind, (make, lines) in KINDS.items():
        for at in range(5):
            secret = make(rng)
            found.append((kind, secret, lines[at % len(lines)].format(secret)))
    return found


def test_none_of_a_hundred_planted_secrets_is_left_in_the_log() -> None:
    secrets = planted()
    assert (len(KINDS), len(secrets)) == (20, 100)
    lines = [line for pair in zip(INNOCENT * 10, (line for *_, line in secrets), strict=False) for line in pair]
    text, counts = redact("\n".join(lines))
    assert [(kind, secret) for kind, secret, _ in secrets if secret.lower() in text.lower()] == []
    assert sum(counts.values()) >= 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_secret_goes_from_its_line_alone(kind: str) -> None:
    for secret, line in ((secret, line) for seed in range(6) for held, secret, line in planted(seed) if held == kind):
        text, _ = redact(line)
        assert secret not in text and secret[len(secret) // 2 :] not in text, line


@pytest.mark.parametrize("line", INNOCENT, ids=range(len(INNOCENT)))
def test_what_a_log_is_full_of_stays(line: str) -> None:
    assert redact(line)[0] == line


def test_logs_without_secrets_lose_nothing() -> None:
    paths = [*sorted((ROOT / "fixtures" / "demo").glob("*.log"))]
    texts = [path.read_text("utf-8") for path in paths]
    assert sum(text.count("\n") for text in texts) > 100
    assert [redact(text)[1] for text in texts] == [{}] * len(texts)


def test_the_same_value_gets_the_same_placeholder_in_every_text() -> None:
    redactor = Redactor()
    texts = [
        "srun: error: dgx-07: task 1: Killed",
        "dgx-07 and dgx-08 in /home/novak1/x",
        "novak1 asked for dgx-08 by DGX-07",
    ]
    for text in texts:
        redactor.learn(text)
    assert [redactor.text(text) for text in texts] == [
        "srun: error: <host-1>: task 1: Killed",
        "<host-1> and <host-2> in /home/<user-1>/x",
        "<user-1> asked for <host-2> by <host-1>",
    ]
    assert redactor.counts == {"host": 5, "user": 2}


def test_the_name_of_a_setting_says_that_its_value_is_a_secret() -> None:
    secret = _of(ALNUM, 24)(random.Random(1)) + "7"
    settings = {
        "config": [
            {"key": "trainer.api_key", "here": secret, "good": "none"},
            {"key": "lr", "here": "1e-6", "good": "1e-5"},
        ]
    }
    assert Redactor().everything(settings) == {
        "config": [{"key": "trainer.api_key", "here": "<secret-1>", "good": "none"}, settings["config"][1]]
    }


@pytest.mark.parametrize("line", ["user {}", "cancelled by user {}.", "user '{}' is over quota", "username={}", "username {}", "login: {}", "for user {}: denied", "USER {}"])  # fmt: skip
@pytest.mark.parametrize("name", ["mmeyer", "j.doe", "zhang-3"])
def test_a_bare_name_after_user_or_login_is_hidden(line: str, name: str) -> None:
    assert redact(line.format(name))[0] == line.format("<user-1>")


@pytest.mark.parametrize("text", ["user error", "user code", "user defined", "user input.", "user: hello", "user configuration", "user requesting it", "user ids=[3]", "Last login: Mon", "user e.g. x", "for user x"])  # fmt: skip
def test_what_sentences_say_of_users_stays(text: str) -> None:
    assert redact(text)[0] == text


def test_a_name_of_a_home_folder_is_hidden_wherever_it_stands_and_a_word_is_not() -> None:
    text = redact("bob_exp of Bob, in /home/bob/run and /home/ppo/x: ppo step")[0]
    assert text == "<user-1>_exp of <user-1>, in /home/<user-1>/run and /home/<user-2>/x: ppo step"


def test_both_ends_of_a_range_of_addresses_are_hidden_and_a_revision_is_kept() -> None:
    assert redact("nodes 10.7.0.1-10.7.0.9")[0] == "nodes <ip-1>-<ip-2>"
    assert redact("libcudnn 9.1.0.70-1")[0] == "libcudnn 9.1.0.70-1"


def test_redacting_twice_changes_nothing() -> None:
    text, _ = redact("\n".join(line for *_, line in planted()))
    assert redact(text) == (text, {})


def test_every_pattern_says_why_and_where_it_comes_from() -> None:
    names = [entry["name"] for entry in table()["pattern"]]
    assert len(names) == len(set(names)) and all(entry["reason"] and entry["source"] for entry in table()["pattern"])
    assert all(pattern.expression.groups for pattern in patterns())


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a-1.", "1.", "1:", "a@", "/home/", "-----BEGIN PRIVATE KEY-----\n", "password=", "://a:", "eyJa.", "token ",
     "node-", "api_key ", "authorization: ", "host ", "user_", "wandb key ", "[a1", " \t", "x" * 9 + "-", "Cookie: a=b", "~a", "AKIA", "::", "user a.", "login:", "user aing"],
)  # fmt: skip
def test_hostile_text_takes_time_that_grows_with_its_length_only(piece: str) -> None:
    """A pattern that went back over the text would need hours for these."""
    assert Redactor().text(piece * (60_000 // len(piece)))
