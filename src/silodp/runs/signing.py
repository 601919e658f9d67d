"""A signed privacy statement: what an ethics board gets today and can check against the folder later.

    privacy-statement.json        the statement; these very bytes are signed
    privacy-statement.json.sig    the Ed25519 signature, 64 bytes, as OpenSSL writes and reads it

The statement holds hashes of the ledger, the experiment and the model beside both ε, so a change to any of
them shows, and so does a folder that was rolled back as a whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.files import to_json, write_atomically
from silodp.privacy.accountants import Accountant
from silodp.privacy.ledger import read_ledger
from silodp.runs.schema import UnitRecord, checked, read_as
from silodp.runs.statement import Statement, read_statement
from silodp.runs.traces import sha256
from silodp.runs.version import version

STATEMENT, SIGNATURE = "privacy-statement.json", "privacy-statement.json.sig"
AGAIN = "sign the run again"
FORMAT = "silodp privacy statement 1"
PASSWORD = "SILODP_KEY_PASSWORD"

_FILES = ("ledger.jsonl", "experiment.toml", "model.safetensors")
_MOMENTARY = {"folder", "torn", "problems", "by_round"}
"""Of a statement's fields: what is not signed, for it means nothing elsewhere or follows from the rest."""


class _Marked(TypedDict):
    format: str


class SignedStatement(_Marked):
    """Of a signed statement, which has all of `Statement.to_dict` that lasts, what is read from it."""

    silodp: str
    asked: Accountant
    ledger_head: str
    sha256: dict[str, str]
    rounds: int
    delta: float
    epsilon: UnitRecord
    replace_one: UnitRecord
    unprotected: list[str]
    not_covered_by_epsilon: list[str]


def sign(folder: Path, key: Path, accountant: Accountant = "auto") -> str:
    """Writes the statement and its signature into a finished run's folder.

    Returns:
        The fingerprint of the key: SHA-256 of the public key (DER), in hex.
    """
    private = _private_key(key)
    statement = read_statement(folder, accountant)
    if statement.problems:
        raise InputError(f"{folder}: not signed, for its files are not in order: {statement.problems[0]}")
    if statement.torn or not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder}: not signed, for the run is not over; finish it with `silodp resume`")
    content = (to_json(_content(folder, statement, accountant), indent=2) + "\n").encode()
    write_atomically(folder / STATEMENT, content)
    write_atomically(folder / SIGNATURE, private.sign(content))
    return fingerprint(private.public_key())


def verify(folder: Path, key: Path) -> SignedStatement:
    """The signed statement, after everything in it has been held against the folder; refuses what differs."""
    public = _public_key(key)
    for name in (STATEMENT, SIGNATURE):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder / name}: is missing; sign the run with `silodp privacy {folder} --sign KEY`"
            )
    try:
        public.verify((folder / SIGNATURE).read_bytes(), (folder / STATEMENT).read_bytes())
    except InvalidSignature:
        raise InputError(
            f"{folder / STATEMENT}: the statement or its signature was changed, or another key than "
            f"{fingerprint(public)} signed it"
        ) from None
    marked = read_as(_Marked, folder / STATEMENT, AGAIN)
    if marked["format"] != FORMAT:
        raise InputError(
            f"{folder / STATEMENT}: another version of silodp signed it; verify it with that one"
        )
    signed = checked(SignedStatement, marked, folder / STATEMENT, AGAIN)
    found = {name: sha256(folder / name) if (folder / name).is_file() else "" for name in _FILES}
    if changed := [name for name in _FILES if found[name] != signed["sha256"].get(name)]:
        raise InputError(f"{folder}: not what was signed: {', '.join(changed)} was changed")
    statement = read_statement(folder, signed["asked"])
    now = json.loads(to_json(_content(folder, statement, signed["asked"])))
    differ = [name for name in now if not _same(name, signed, now)] + [*statement.problems]
    if differ:
        raise InputError(f"{folder}: not what was signed by silodp {signed['silodp']}: {'; '.join(differ)}")
    return signed


def fingerprint(key: Ed25519PublicKey) -> str:
    """As `openssl pkey -pubin -outform DER | sha256sum` gives it."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def key_fingerprint(key: Path) -> str:
    return fingerprint(_public_key(key))


def _content(folder: Path, statement: Statement, accountant: Accountant) -> dict[str, Any]:
    told = {name: value for name, value in statement.to_dict().items() if name not in _MOMENTARY}
    return {
        "format": FORMAT,
        "silodp": version(),
        "experiment": statement.experiment.name,
        "asked": accountant,
        "ledger_head": read_ledger(folder / "ledger.jsonl").chains[-1],
        "sha256": {name: sha256(folder / name) for name in _FILES},
        **told,
    }


def _same(name: str, signed: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """Words may change from version to version of silodp; numbers may not."""
    if name == "silodp" or (
        name in ("not_covered_by_epsilon", "remarks") and signed["silodp"] != now["silodp"]
    ):
        return True
    return _close(signed.get(name), now[name])


def _close(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of a number: ε may come out so on another machine."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _private_key(path: Path) -> Ed25519PrivateKey:
    way_out = f"make one with `openssl genpkey -algorithm ed25519 -out {path}`"
    content = _read(path, "--sign", way_out)
    password = os.environ.get(PASSWORD)
    try:
        key = load_pem_private_key(content, password.encode() if password else None)
    except TypeError:  # it has a password and none was given, or the other way round
        needed = (
            f"set {PASSWORD} to its password" if password is None else f"it has no password; unset {PASSWORD}"
        )
        raise InputError(f"--sign {path}: {needed}") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = f", or {PASSWORD} is not its password" if password else ""
        raise InputError(f"--sign {path}: not a private key in PEM{wrong}; {way_out}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"--sign {path}: not an Ed25519 key; make another with `openssl genpkey -algorithm ed25519`"
        )
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    way_out = f"whoever signed makes it with `openssl pkey -in key.pem -pubout -out {path}`"
    try:
        key = load_pem_public_key(_read(path, "--verify", way_out))
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"--verify {path}: not a public key in PEM; {way_out}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"--verify {path}: not an Ed25519 key; {way_out}")
    return key


def _read(path: Path, option: str, way_out: str) -> bytes:
    if not path.is_file():
        raise InputError(f"{option} {path}: there is no such file; {way_out}")
    return path.read_bytes()
