"""Keys, in formats of OpenSSL and OpenSSH: for signatures, and for connections to the SuperLink.

    signing.key    Ed25519, PKCS8 in PEM   signs plans (coordinator), contributions and statements (hospital)
    node.key       EC P-384, OpenSSH       authenticates a hospital's connection to the SuperLink only

A private key is written with mode 0600, and never over an existing file.
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

from silodp.deploy.folders import write_new
from silodp.errors import InputError, short
from silodp.files import read_plain

PASSWORD = "SILODP_KEY_PASSWORD"
LARGEST = 2**16  # bytes of a key's file
FROM_THE_KIT = "copy it from the folder that `silodp deploy init` or `silodp deploy join` made"


def new_signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def new_node_key() -> EllipticCurvePrivateKey:
    """A key on P-384, since Flower accepts NIST curves only."""
    return generate_private_key(SECP384R1())


def write_private(path: Path, key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> None:
    """Writes a new file: PKCS8 in PEM, without a password; mode 0600, on disk when this returns."""
    write_new(path, private_pem(key), 0o600)


def private_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_node_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    """As `write_private`, but in OpenSSH's format, which Flower requires."""
    write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)


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
    """Reads an Ed25519 private key; its password, if any, is in the environment.

    Args:
        path: of the key.
        option: of the command line that named it, for errors.
        way_out: where such a key comes from, for errors.
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
    """Reads an Ed25519 public key in PEM, from a file or its content; arguments as in `read_signing_key`."""
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
    """Reads "ecdsa-sha2-nistp384 AAAA… comment"; refuses certificates and other kinds of keys."""
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
    """Decodes a signature in hex and verifies that `key` signed `content`; else InputError(refusal)."""
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
