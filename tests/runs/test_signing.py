"""Signed statements: silodp and OpenSSL can check later what was signed, and every change shows."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import blob_cohort, command_line, killed_run, succeed
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from silodp import InputError
from silodp.deploy.keys import PASSWORD
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import read_ledger
from silodp.runs.folder import read_experiment
from silodp.runs.signing import SIGNATURE, STATEMENT, key_fingerprint, sign, verify


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """key.pem and public.pem; other.pem and other-public.pem."""
    folder = tmp_path_factory.mktemp("keys")
    for name, public in (("key.pem", "public.pem"), ("other.pem", "other-public.pem")):
        write_keys(folder / name, folder / public)
    return folder


def write_keys(path: Path, public: Path, password: bytes | None = None) -> None:
    key = Ed25519PrivateKey.generate()
    hidden = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.fixture(scope="module")
def signed_run(finished: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(finished, tmp_path_factory.mktemp("signed") / "run")
    sign(folder, keys / "key.pem")
    return folder


@pytest.fixture
def run(signed_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(signed_run, tmp_path / "run")


def test_a_statement_says_what_the_run_cost_and_what_it_is_of(run: Path, keys: Path) -> None:
    signed = verify(run, keys / "public.pem")
    assert signed == json.loads((run / STATEMENT).read_bytes())
    for name in ("ledger.jsonl", "experiment.toml", "model.safetensors"):
        assert signed["sha256"][name] == hashlib.sha256((run / name).read_bytes()).hexdigest()
    assert signed["ledger_head"] == read_ledger(run / "ledger.jsonl").chains[-1]
    for relation, times in (("epsilon", 1), ("replace_one", 2)):
        for unit, moved in (("hospital", 2), ("intermediary", 1)):
            mu = 2 * moved * times / 0.5  # √4 rounds, v = 2, z = 0.5
            assert signed[relation][unit] == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-6)
    assert signed["delta"] == 0.1
    assert any("cohort.json" in note for note in signed["not_covered_by_epsilon"])
    assert signed["silodp"].startswith("0.1")


def test_signing_again_gives_the_same_bytes(run: Path, keys: Path) -> None:
    before = (run / STATEMENT).read_bytes(), (run / SIGNATURE).read_bytes()
    assert sign(run, keys / "key.pem") == key_fingerprint(keys / "public.pem")
    assert ((run / STATEMENT).read_bytes(), (run / SIGNATURE).read_bytes()) == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ledger.jsonl", "not what was signed: ledger.jsonl was changed"),
        ("experiment.toml", "not what was signed: experiment.toml was changed"),
        ("model.safetensors", "not what was signed: model.safetensors was changed"),
        (STATEMENT, "the statement or its signature was changed"),
        (SIGNATURE, "the statement or its signature was changed"),
    ],
)
def test_any_changed_byte_is_refused_by_name(name: str, says: str, run: Path, keys: Path) -> None:
    content = (run / name).read_bytes()
    places = range(0, len(content), max(1, len(content) // 60))
    for place in [*places, len(content) - 1]:
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (run / name).write_bytes(changed)
        with pytest.raises(InputError, match=says):
            verify(run, keys / "public.pem")
    for changed in (content + b"\n", content[:-1], b""):
        (run / name).write_bytes(changed)
        with pytest.raises(InputError, match=says):
            verify(run, keys / "public.pem")
    (run / name).unlink()
    with pytest.raises(InputError, match=name):
        verify(run, keys / "public.pem")
    (run / name).write_bytes(content)
    verify(run, keys / "public.pem")


def test_white_space_in_the_ledger_is_a_change_though_its_chain_holds(run: Path, keys: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text(path.read_text().replace('{"round"', '{ "round"', 1))
    assert read_ledger(path).events
    with pytest.raises(InputError, match=r"not what was signed: ledger\.jsonl"):
        verify(run, keys / "public.pem")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", {"hospital": 1.0, "intermediary": 0.5}),
        ("delta", 0.01),
        ("not_covered_by_epsilon", []),
        ("rounds", 3),
        ("ledger_head", "0" * 64),
    ],
)
def test_numbers_that_the_folder_does_not_give_are_refused_though_signed(
    field: str, value: object, run: Path, keys: Path
) -> None:
    """Whoever signs may err, or have another program: silodp computes everything again."""
    key = load_pem_private_key((keys / "key.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    content = json.dumps(json.loads((run / STATEMENT).read_bytes()) | {field: value}).encode()
    (run / STATEMENT).write_bytes(content)
    (run / SIGNATURE).write_bytes(key.sign(content))
    with pytest.raises(InputError, match=f"not what was signed by silodp .*: {field}"):
        verify(run, keys / "public.pem")


def test_another_key_is_refused(run: Path, keys: Path) -> None:
    with pytest.raises(InputError, match=r"or another key than [0-9a-f]{64} signed it"):
        verify(run, keys / "other-public.pem")


def test_a_run_rolled_back_as_a_whole_is_not_what_was_signed(run: Path, keys: Path, tmp_path: Path) -> None:
    """The same experiment's run after two rounds, in order in itself: only the signature tells."""
    killed_run(read_experiment(run), 2, cohort=blob_cohort(), out=tmp_path / "early")
    for name in (STATEMENT, SIGNATURE):
        shutil.copy(run / name, tmp_path / "early")
    with pytest.raises(InputError, match=r"not what was signed: ledger\.jsonl, model\.safetensors"):
        verify(tmp_path / "early", keys / "public.pem")


def test_a_run_that_is_not_in_order_or_not_over_is_not_signed(run: Path, keys: Path, tmp_path: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="not signed, since its files are inconsistent: "):
        sign(run, keys / "key.pem")
    killed_run(read_experiment(run), 1, cohort=blob_cohort(), out=tmp_path / "early")
    unfinished = "not signed, since the run is not finished; finish it with `silodp resume`"
    with pytest.raises(InputError, match=unfinished):
        sign(tmp_path / "early", keys / "key.pem")
    assert not (tmp_path / "early" / STATEMENT).exists()


def _rsa(path: Path) -> None:
    key = generate_private_key(65537, 2048)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "there is no such file; make one with `openssl genpkey -algorithm ed25519 -out "),
        (lambda path: path.write_text("hello"), "not a private key in PEM; make one with `openssl genpkey"),
        (_rsa, "not an Ed25519 key; make another with `openssl genpkey -algorithm ed25519`"),
    ],
    ids=["missing", "text", "rsa"],
)
def test_a_key_that_cannot_sign_is_named(
    make: Callable[[Path], None], says: str, run: Path, tmp_path: Path
) -> None:
    make(tmp_path / "mine.pem")
    with pytest.raises(InputError, match=rf"--sign .*mine\.pem: {says}"):
        sign(run, tmp_path / "mine.pem")


def test_the_wrong_half_of_a_key_is_named_and_no_advice_writes_over_it(run: Path, keys: Path) -> None:
    says = r"not a public key in PEM; this is a private key; its public half is what `openssl pkey"
    with pytest.raises(InputError, match=says) as verified:
        verify(run, keys / "key.pem")
    with pytest.raises(InputError, match="not a private key in PEM; make one with") as signed:
        sign(run, keys / "public.pem")
    for told in (verified, signed):
        assert not re.search(r"-out \S*(key|public)\.pem", str(told.value).replace("signing-key.pem", ""))


def test_a_key_with_a_password(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(tmp_path / "key.pem", tmp_path / "public.pem", b"open sesame")
    for password, says in ((None, "set SILODP_KEY_PASSWORD"), ("sesame", "is not its password")):
        if password:
            monkeypatch.setenv(PASSWORD, password)
        with pytest.raises(InputError, match=says):
            sign(run, tmp_path / "key.pem")
    monkeypatch.setenv(PASSWORD, "open sesame")
    sign(run, tmp_path / "key.pem")
    verify(run, tmp_path / "public.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_openssl_makes_the_key_and_verifies_the_signature(run: Path, tmp_path: Path) -> None:
    """Nothing of silodp is needed to see who signed which bytes; and the commands that errors name work."""

    def openssl(*words: object) -> bytes:
        return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True).stdout

    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", key)
    openssl("pkey", "-in", key, "-pubout", "-out", public)
    mark = sign(run, key)
    assert mark == hashlib.sha256(openssl("pkey", "-pubin", "-in", public, "-outform", "DER")).hexdigest()
    check = ("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", run / STATEMENT,
             "-sigfile", run / SIGNATURE)  # fmt: skip
    assert b"Signature Verified Successfully" in openssl(*check)
    openssl("pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", run / STATEMENT, "-out", tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == (run / SIGNATURE).read_bytes()
    (run / STATEMENT).write_bytes((run / STATEMENT).read_bytes() + b" ")
    with pytest.raises(subprocess.CalledProcessError):
        openssl(*check)


def test_the_command_line(run: Path, keys: Path) -> None:
    mark = key_fingerprint(keys / "public.pem")
    assert f"signed, key {mark}" in succeed("privacy", run, "--sign", keys / "key.pem").stderr
    said = succeed("privacy", run, "--verify", keys / "public.pem").stdout
    assert f"as it was signed by key {mark}" in said
    assert f"hospital (add-or-remove) {gaussian_epsilon(2 * 2 / 0.5, 0.1):,.1f}" in said
    told = json.loads(succeed("privacy", run, "--verify", keys / "public.pem", "--json").stdout)
    assert (told["key"], told["verified"]) == (mark, True)
    other = (run, "--verify", keys / "other-public.pem")
    for words in (other, (run, "--sign", "a", "--verify", "b"), ("--sign", "a"), ("--verify", "b")):
        done = command_line("privacy", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
