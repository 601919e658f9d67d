"""Keys, in the forms that OpenSSL and OpenSSH read: who signs what, and whom the SuperLink lets in.

    signing.key    Ed25519, PKCS8 in PEM   signs plans (coordinator), contributions and statements (hospital)
    node.key       EC P-384, OpenSSH       opens a hospital's connection to the SuperLink, and nothing else

A private key is written once, for its owner alone (0600), and never over a file that is there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_public_key,
)

from silodp.deploy.folders import put
from silodp.errors import InputError, short
from silodp.files import read_plain

PASSWORD = "SILODP_KEY_PASSWORD"
LARGEST = 2**16  # bytes of a key's file
FROM_THE_KIT = "copy it from the folder that `silodp deploy init` or `silodp deploy join` made"


def new_signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def new_node_key() -> EllipticCurvePrivateKey:
    """EC on P-384: Flower takes NIST curves only."""
    return generate_private_key(SECP384R1())


def write_private(path: Path, key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> None:
    """Writes a new file: PKCS8 in PEM, without a password; mode 0600, on disk when this returns."""
    put(path, private_pem(key), 0o600)


def private_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_node_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    """As `write_private`, but in OpenSSH's format, which Flower requires."""
    put(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)


def public_pem(key: Ed25519PublicKey | EllipticCurvePublicKey) -> str:
    """As `openssl pkey -pubout` writes it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def node_public_text(key: EllipticCurvePublicKey) -> str:
    """As `ssh-keygen -y` writes it, without a comment or an end of line."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def fingerprint(key: Ed25519PublicKey | EllipticCurvePublicKey) -> str:
    """SHA-256 of the public key in hex, as `openssl pkey -pubin -outform DER | sha256sum` gives it."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_signing_key(path: Path, option: str = "", way_out: str = FROM_THE_KIT) -> Ed25519PrivateKey:
    """An Ed25519 key; its password, if it has one, is in the environment.

    Args:
        option: of the command line, that the key was given with; for errors.
        way_out: where such a key comes from; for errors.
    """
    said = f"{option} {path}".strip()
    content = _read(path, said, way_out)
    password = os.environ.get(PASSWORD)
    try:
        key = load_pem_private_key(content, password.encode() if password else None)
    except TypeError:  # it has a password and none was given, or the other way round
        needed = (
            f"set {PASSWORD} to its password" if password is None else f"it has no password; unset {PASSWORD}"
        )
        raise InputError(f"{said}: {needed}") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = f", or {PASSWORD} is not its password" if password else ""
        raise InputError(f"{said}: not a private key in PEM{wrong}; {way_out}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{said}: not an Ed25519 key; make another with `openssl genpkey -algorithm ed25519`"
        )
    return key


def read_public_key(source: Path | bytes, option: str = "", way_out: str = FROM_THE_KIT) -> Ed25519PublicKey:
    """An Ed25519 public key in PEM, from a file or as its content; arguments as in `read_signing_key`."""
    if isinstance(source, bytes):
        said, content = option or "public key", source
    else:
        said = f"{option} {source}".strip()
        content = _read(source, said, way_out)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{said}: not a public key in PEM; {way_out}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{said}: not an Ed25519 key; {way_out}")
    return key


def read_node_public_key(text: str | bytes, said: str = "node key") -> EllipticCurvePublicKey:
    """Of "ecdsa-sha2-nistp384 AAAA… comment"; certificates and other kinds of keys are refused."""
    content = text.encode() if isinstance(text, str) else text
    said = f"{said} = {short(content.decode(errors='replace').strip()[:30])}"  # never all of a private key
    way_out = "put the text of the hospital's node.pub there"
    try:
        key = load_ssh_public_key(content.strip())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{said}: not a public key of OpenSSH; {way_out}") from None
    if not (
        isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1 | SECP384R1 | SECP521R1)
    ):
        raise InputError(f"{said}: not a key on a NIST curve; {way_out}")
    return key


def verified(text: object, key: Ed25519PublicKey, content: bytes, refusal: str) -> bytes:
    """The signature that `text` has in hex, if `key` made it under `content`; else InputError(refusal)."""
    try:
        signature = bytes.fromhex(str(text))
        key.verify(signature, content)
    except (ValueError, InvalidSignature):
        raise InputError(refusal) from None
    return signature


def _read(path: Path, said: str, way_out: str) -> bytes:
    if not path.is_file():
        raise InputError(f"{said}: there is no such file; {way_out}")
    return read_plain(path, LARGEST)
