"""Bytes in Flower's form of a message, and keys: without a network."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from silodp.deploy.keys import new_node_key, new_signing_key, write_node_key, write_private
from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.errors import InputError


def pieces(content: bytes) -> dict[str, bytes]:
    message = wire.to_node(content, run_id=1, node_id=2, ttl=60)
    return {name: piece.deflate() for name, piece in flower.get_all_nested_objects(message).items()}


@pytest.mark.parametrize("content", [b"", b"\x00", bytes(11_000_000)])
def test_bytes_survive_flowers_pieces(content: bytes) -> None:
    """Also where many pieces are the same: of eleven million zeros two differ."""
    assert wire.joined(pieces(content)) == content


def test_one_piece_listed_a_million_times_takes_no_memory() -> None:
    found = pieces(bytes(1000))
    name = next(name for name, piece in found.items() if piece.startswith(b"Array "))
    head, body = found[name].split(b"\x00", 1)
    bomb = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 2_000_000}).encode()
    found[name] = head + b"\x00" + bomb
    with pytest.raises(wire.ProtocolError, match="more than 100,000,000 bytes"):
        wire.joined(found, 100_000_000)


def test_a_message_with_two_arrays_is_refused() -> None:
    """Which of them was meant, whoever is in between could choose."""
    with pytest.raises(wire.ProtocolError, match="2 arrays where one was expected"):
        wire.joined(pieces(b"one") | pieces(b"another"))


@given(st.dictionaries(st.text(max_size=4), st.binary(max_size=60), max_size=4))
def test_nonsense_is_refused_whatever_it_is(found: dict[str, bytes]) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.joined(found, 1000)


@given(st.integers(0, 4), st.integers(0, 500), st.integers(0, 255))
def test_a_message_with_a_flaw_is_refused_or_read(which: int, place: int, byte: int) -> None:
    found = pieces(b"some bytes")
    name = list(found)[which]
    flawed = bytearray(found[name])
    flawed[place % len(flawed)] = byte
    found[name] = bytes(flawed)
    with suppress(wire.ProtocolError):
        assert len(wire.joined(found, 1000)) <= 1000


def test_a_download_stops_at_its_limit() -> None:
    class Endless:
        def PullObject(self, request: Any) -> Any:
            class Answer:
                object_found, object_available, object_content = True, True, bytes(2**20)

            return Answer

    message = wire.to_node(bytes(30_000_000), 1, 2, 60)
    with pytest.raises(wire.ProtocolError, match="more than 1,000 bytes"):
        wire.pull(flower.get_object_tree(message), 1, Endless(), None, seconds=1, largest=1000)


def test_keys_that_do_not_do_are_named(tmp_path: Path) -> None:
    write_node_key(tmp_path / "node.key", new_node_key())
    wire.load_private_key(tmp_path / "node.key")
    write_private(tmp_path / "signing.key", new_signing_key())
    (tmp_path / "other.key").write_bytes(openssh(ec.generate_private_key(ec.SECP256R1())))
    wrong = {"signing": "not a node key", "nothing": "not a node key", "other": "not a P-384 key"}
    for name, words in wrong.items():
        with pytest.raises(InputError, match=rf"{name}\.key: {words}.*make one with ssh-keygen"):
            wire.load_private_key(tmp_path / f"{name}.key")
    with pytest.raises(InputError, match=r"not a CA certificate"):
        wire.tls_context(tmp_path / "node.key")


def openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
