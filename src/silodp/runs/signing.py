"""A signed privacy statement, for example for an ethics board, which can check it against the folder later.

    privacy-statement.json        the statement; these very bytes are signed
    privacy-statement.json.sig    the Ed25519 signature, 64 bytes, as OpenSSL writes and reads it

The statement has hashes of the ledger, the experiment and the model beside both ε, so it shows any change to
them, and a folder that was rolled back as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from typing_extensions import TypedDict

from silodp.deploy.keys import fingerprint, read_public_key, read_signing_key
from silodp.errors import InputError
from silodp.files import sha256, to_json, write_atomically
from silodp.privacy.accountants import Accountant
from silodp.privacy.ledger import read_ledger
from silodp.runs.schema import UnitRecord, checked, read_as
from silodp.runs.statement import Statement, read_statement
from silodp.runs.version import version

STATEMENT, SIGNATURE = "privacy-statement.json", "privacy-statement.json.sig"
AGAIN = "sign the run again"
FORMAT = "silodp privacy statement 1"

_FILES = ("ledger.jsonl", "experiment.toml", "model.safetensors")
_MOMENTARY = {"folder", "torn", "problems", "by_round"}
"""Fields of a statement that are not signed: they depend on the machine, or follow from the rest."""


class _Marked(TypedDict):
    format: str


class SignedStatement(_Marked):
    """The fields of a signed statement that are read; it has all lasting ones of `Statement.to_dict`."""

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
    new = key.with_name("signing-key.pem") if key.exists() else key  # no advice may overwrite a key
    made = f"make one with `openssl genpkey -algorithm ed25519 -out {new}`"
    private = read_signing_key(key, "--sign", made)
    statement = read_statement(folder, accountant)
    if statement.problems:
        raise InputError(f"{folder}: not signed, since its files are inconsistent: {statement.problems[0]}")
    if statement.torn or not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder}: not signed, since the run is not finished; finish it with `silodp resume`"
        )
    content = (to_json(_content(folder, statement, accountant), indent=2) + "\n").encode()
    write_atomically(folder / STATEMENT, content)
    write_atomically(folder / SIGNATURE, private.sign(content))
    return fingerprint(private.public_key())


def verify(folder: Path, key: Path) -> SignedStatement:
    """Verifies the signature and checks the statement against the folder; returns the statement."""
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


def key_fingerprint(key: Path) -> str:
    return fingerprint(_public_key(key))


def _public_key(path: Path) -> Ed25519PublicKey:
    made = "whoever signed makes it with `openssl pkey -in signing-key.pem -pubout -out public.pem`"
    if path.is_file() and b"PRIVATE KEY" in path.read_bytes():
        made = f"this is a private key; its public half is what `openssl pkey -in {path} -pubout` prints"
    return read_public_key(path, "--verify", made)


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
    """Whether a field is unchanged; texts may differ between versions of silodp."""
    if name == "silodp" or (
        name in ("not_covered_by_epsilon", "remarks") and signed["silodp"] != now["silodp"]
    ):
        return True
    return _close(signed.get(name), now[name])


def _close(one: Any, other: Any) -> bool:
    """Whether values are equal, up to rounding of numbers, which differs between machines."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)
