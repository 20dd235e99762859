"""A secret in a log, an environment or a command line stops the sealing of a run, and no message shows it."""

from __future__ import annotations

import io
import json
import shlex
from urllib.parse import quote

import pytest
import recorded_slurm

from builders.archived_run import ArchivedRun
from builders.paths import FIXTURES, ROOT
from servemark.archive import contents
from servemark.archive.seal import ArchiveRefused
from servemark.deployment import attempts
from servemark.report import charts
from servemark.security import secret_scan
from servemark.security.redaction import Redactor

ATTEMPT = "deployments/plain/attempts/001"
ODD = "pa\"ss wörd's & <more>"
# In two parts, so that no scanner reports this file.
RANDOM = "0123456789abcdef" + "ABCDEFGHIJ"
# Kinds: by shape, and by the name of a variable or an option.
DEPLOYMENT_KEY, *_, VARIABLE, OPTION = (pattern.name for pattern in secret_scan.PATTERNS)
ANNOUNCED = (VARIABLE, OPTION)


def environment(secret: str) -> dict[str, str]:
    """Return an environment with the secret between harmless variables."""
    return {"PATH": "/usr/bin", "TEAM_KEY": secret, "VLLM_USE_V1": "1"}


def argv(secret: str) -> list[str]:
    return ["vllm", "serve", "--port", "8000", "--site-password", secret, "--seed", "1"]


FORMS = {
    "log line": lambda secret: f"INFO 03-04 10:12:44 [client.py:7] asking with {secret} for a model",
    "environment, a line each": lambda secret: "".join(f"{n}={v}\n" for n, v in environment(secret).items()),
    "environment in JSON": lambda secret: json.dumps(environment(secret), indent=1),
    "environment as Python shows it": lambda secret: str(environment(secret)),
    "environment of /proc": lambda secret: "\0".join(f"{n}={v}" for n, v in environment(secret).items()),
    "argv in JSON": lambda secret: json.dumps({"argv": argv(secret)}),
    "argv in a record": lambda secret: json.dumps({"argv": argv(secret)}, indent=2, ensure_ascii=False),
    "argv as Python shows it": lambda secret: str(argv(secret)),
    "argv of a shell": lambda secret: shlex.join(argv(secret)),
    "argv of /proc": lambda secret: "\0".join(argv(secret)),
    "address": lambda secret: f"GET http://host:8000/v1?key={quote(secret, safe='')} 401",
}


def assert_refused(run: ArchivedRun, name: str, secret: str, environ: dict[str, str] | None = None) -> str:
    """Check that the archive is refused because of a file; return what happened."""
    with pytest.raises(ArchiveRefused) as caught:
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", environ or {})
    told = caught.value
    assert (told.reason, told.exit_code) == ("secret_found", 1)
    assert f"{name}, line " in told.what and told.look == str(run.folder / name)
    assert told.do
    for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
        assert form not in told.message()
    assert not (run.root / "out").exists()
    return told.what


def leak(run: ArchivedRun, name: str, text: str) -> str:
    run.write(name, f"first\nsecond\n{text}\nlast\n")
    return name


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", attempts.supervisor.SECRETS)
def test_key_of_a_deployment_is_found_without_its_file(run, form, name):
    path = attempts.secret(run.folder / ATTEMPT, name)
    key = path.read_text()
    path.unlink()
    log = leak(run, f"{ATTEMPT}/server.log", form(key))
    assert f"({DEPLOYMENT_KEY})" in assert_refused(run, log, key)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("secret", ["correct-horse-battery", ODD])
def test_secret_of_the_environment_is_found_in_every_form(run, form, secret):
    log = leak(run, "logs/serve_model/plain.log", form(secret))
    said = assert_refused(run, log, secret, {"SITE_PASSWORD": secret, "HOME": "/home/me"})
    assert " SITE_PASSWORD)" in said


def test_secret_is_found_in_the_command_line_of_a_record(run):
    run.edit_json(f"{ATTEMPT}/daemons/server.json", lambda state: state["argv"].extend(["--x", "correct-horse-battery"]))
    assert_refused(run, f"{ATTEMPT}/daemons/server.json", "correct-horse-battery", {"HF_TOKEN": "correct-horse-battery"})


def test_live_key_of_any_form_is_found(run):
    run.write("serving/plain/attempts/001/api-key", "an-old-key-of-ours")
    log = leak(run, "logs/a.log", "an-old-key-of-ours")
    assert "(api-key " in assert_refused(run, log, "an-old-key-of-ours")


def test_variables_named_like_secrets_are_searched():
    environ = {
        "HF_TOKEN": " long-enough\n", "SHORT_KEY": "1234567", "KEY_FILE": "conf/key-of-mine", "SSH_KEY": "/home/me/.ssh/id",
        "TOKENIZERS_PARALLELISM": "false-or-true", "MAX_TOKENS": "100000000", "DB_PASSWORD": "12345678",
    }  # fmt: skip
    found = secret_scan.of_environment(environ)
    assert {value: kind.split()[-1] for value, kind in found.items()} == {"long-enough": "HF_TOKEN", "12345678": "DB_PASSWORD"}


def kinds(text: str) -> str | None:
    found = secret_scan.scan(io.BytesIO(text.encode()), secret_scan.PATTERNS, lambda _: None)
    return found.kind if found else None


@pytest.mark.parametrize("form", list(FORMS.values())[1:-1], ids=list(FORMS)[1:-1])
def test_unknown_secret_is_found_by_its_name(form):
    assert kinds(form(RANDOM)) in ANNOUNCED and kinds(form("aB3/" * 6)) in ANNOUNCED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization: Basic " + "dXNlcjpnZWhlaW0=", "user and password of a request"),
        ('{"authorization": "Basic ' + 'dXNlcjpnZWhlaW0="}', "user and password of a request"),
        ("HTTPS_PROXY=http://me:" + "gehe1mes@proxy:3128", "user and password in an address"),
    ],
)
def test_user_and_password_are_found(text, kind):
    assert kinds(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=***", "HF_TOKEN=${HF_TOKEN_OF_1_USER}", "HF_TOKEN=<your token 12345>",
        "HF_TOKEN is not set: model 70b-instruct", "VLLM_API_KEY=/run/secrets/1/api-key",
        '"VLLM_API_KEY": "results/demo/attempts/001/api-key"', "RAY_AUTH_TOKEN_PATH=conf/T0ken-of-mine",
        "MAX_TOKENS=123456789012a", "NUM_KEY_VALUE_HEADS=8", "--api-key $KEY_OF_SITE_1", "--api-key API_KEY [API_KEY ...]",
        "--tokenizer Qwen3-0.6B-tokens", "--max-num-batched-tokens 8192 --seed 12345", "TOKEN: abcdefghijklmnop",
        "key: eb0a21124beb73d4c5840303156ebede", "servemark_key_of_mine", "https://user:password@host/",
        "see https://host/a:b and me@host1", "git clone https://me:*****@host9/x", "Authorization: Basic auth is off",
    ],
)  # fmt: skip
def test_text_that_resembles_a_secret_is_accepted(text):
    assert kinds(text) is None


@pytest.mark.parametrize(
    "folder",
    [*(FIXTURES / name for name in ("logs", "planning", "nccl", "metrics", "hardware")), recorded_slurm.FIXTURES],
    ids=lambda path: path.name,
)
def test_real_logs_have_no_secret(folder):
    files = [path for path in folder.iterdir() if path.is_file()]
    assert files
    assert {path.name: kinds(path.read_text()) for path in files} == dict.fromkeys(path.name for path in files)


def test_fixed_files_of_an_archive_have_no_secret():
    assert kinds(charts.bundle()) is None
    for path in (ROOT / "envs").rglob("*"):
        assert not path.is_file() or kinds(path.read_text(errors="replace")) is None, path


def test_redaction_keeps_the_name_in_front_of_a_secret():
    redact = Redactor()
    assert redact(f"WANDB_API_KEY={RANDOM} next") == f"WANDB_API_KEY=[REDACTED: {ANNOUNCED[0]}] next"
    assert redact(f"with {secret_scan.KEY_PREFIX}{'0a' * 32}") == f"with [REDACTED: {DEPLOYMENT_KEY}]"
    assert redact("HF_TOKEN=*** --seed 1") == "HF_TOKEN=*** --seed 1"
    assert sum(redact.hits.values()) == 2
