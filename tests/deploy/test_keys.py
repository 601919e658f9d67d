"""Keys that OpenSSL and OpenSSH read, for their owner alone."""

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from silodp.deploy.keys import (
    fingerprint,
    new_node_key,
    new_signing_key,
    node_public_text,
    public_pem,
    read_node_public_key,
    read_public_key,
    read_signing_key,
    write_node_key,
    write_private,
)
from silodp.engines.flower.wire import load_private_key
from silodp.errors import InputError

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def test_a_signing_key_comes_back_and_signs(tmp_path: Path) -> None:
    key = new_signing_key()
    write_private(tmp_path / "signing.key", key)
    (tmp_path / "signing.pub").write_text(public_pem(key.public_key()))
    signature = read_signing_key(tmp_path / "signing.key").sign(b"a plan")
    for public in (
        read_public_key(tmp_path / "signing.pub"),
        read_public_key(public_pem(key.public_key()).encode()),
    ):
        public.verify(signature, b"a plan")
        assert fingerprint(public) == fingerprint(key.public_key())
    assert fingerprint(new_signing_key().public_key()) != fingerprint(key.public_key())


def test_a_node_key_comes_back(tmp_path: Path) -> None:
    key = new_node_key()
    assert isinstance(key.curve, ec.SECP384R1)
    write_node_key(tmp_path / "node.key", key)
    assert b"BEGIN OPENSSH PRIVATE KEY" in (tmp_path / "node.key").read_bytes()
    text = node_public_text(key.public_key())
    assert node_public_text(load_private_key(tmp_path / "node.key").public_key()) == text
    assert text.startswith("ecdsa-sha2-nistp384 ")
    for said in (text, f"{text} site A\n", text.encode()):
        assert node_public_text(read_node_public_key(said)) == text


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_a_private_key_is_its_owners_alone_and_is_never_written_over(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_private(tmp_path / "signing.key", new_signing_key())
        write_node_key(tmp_path / "node.key", new_node_key())
    finally:
        os.umask(before)
    for name in ("signing.key", "node.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        content = (tmp_path / name).read_bytes()
        with pytest.raises(InputError, match=rf"{name}: exists already and is never overwritten"):
            write_private(tmp_path / name, new_signing_key())
        assert (tmp_path / name).read_bytes() == content


@needs_openssl
def test_openssl_reads_the_signing_key_and_gives_the_same_fingerprint(tmp_path: Path) -> None:
    key = new_signing_key()
    write_private(tmp_path / "signing.key", key)
    command = ["openssl", "pkey", "-in", str(tmp_path / "signing.key"), "-pubout"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == public_pem(
        key.public_key()
    )
    der = subprocess.run([*command, "-outform", "DER"], check=True, capture_output=True).stdout
    assert hashlib.sha256(der).hexdigest() == fingerprint(key.public_key())


@needs_ssh_keygen
def test_openssh_reads_the_node_key(tmp_path: Path) -> None:
    key = new_node_key()
    write_node_key(tmp_path / "node.key", key)
    done = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(tmp_path / "node.key")], check=True, capture_output=True, text=True
    )
    assert done.stdout.split()[:2] == node_public_text(key.public_key()).split()


def openssh(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def test_what_is_no_such_key_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    for read in (read_signing_key, read_public_key):
        with pytest.raises(InputError, match=r"a\.key: there is no such file; copy it from the folder that"):
            read(path)
    path.write_bytes(b"hello")
    for read, kind in (
        (read_signing_key, "not a private key in PEM"),
        (read_public_key, "not a public key in PEM"),
    ):
        with pytest.raises(InputError, match=rf"a\.key: {kind}; copy it from"):
            read(path)
    write_private(tmp_path / "node.pem", new_node_key())
    with pytest.raises(InputError, match="not an Ed25519 key"):
        read_signing_key(tmp_path / "node.pem")
    weak = rsa.generate_private_key(65537, 2048).public_key()
    with pytest.raises(InputError, match="not an Ed25519 key"):
        read_public_key(weak.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    path.write_bytes(b"x" * 2**17)
    with pytest.raises(InputError, match="131,072 bytes, and at most 65,536 are read"):
        read_signing_key(path)


def test_a_node_public_key_of_another_kind_is_refused_and_no_private_one_is_shown() -> None:
    ed25519 = new_signing_key().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with pytest.raises(InputError, match=r"hospitals\.A\.node = 'ssh-ed25519 .*: not a key on a NIST curve"):
        read_node_public_key(ed25519, "hospitals.A.node")
    private = openssh(new_node_key())
    with pytest.raises(InputError, match="not a public key of OpenSSH; put the text of") as caught:
        read_node_public_key(private)
    body = private.splitlines()[1:-1]
    assert not any(line.decode() in str(caught.value) for line in body)
    pem = new_signing_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(InputError, match="not a public key in PEM") as caught:
        read_public_key(pem)
    assert pem.splitlines()[1].decode() not in str(caught.value)
