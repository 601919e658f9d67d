"""Bytes in Flower's form of a message, keys, and the proxy's configuration: without a network."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flower_stage import make_certificates, make_node_key
from hypothesis import given
from hypothesis import strategies as st

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.flower.grid import FlowerTransport, GridSettings
from silodp.engines.flower.proxy import nginx_config
from silodp.errors import InputError


def pieces(content: bytes) -> dict[str, bytes]:
    message = wire.to_node(content, run_id=1, node_id=2, ttl=60)
    return {name: piece.deflate() for name, piece in flower.get_all_nested_objects(message).items()}


@pytest.mark.parametrize("content", [b"", b"\x00", bytes(11_000_000)])
def test_bytes_survive_flowers_pieces(content: bytes) -> None:
    """Also where many pieces are the same: of eleven million zeros two differ."""
    assert wire.joined(pieces(content), wire.LARGEST) == content


def test_one_piece_listed_a_million_times_takes_no_memory() -> None:
    found = pieces(bytes(1000))
    name = next(name for name, piece in found.items() if piece.startswith(b"Array "))
    head, body = found[name].split(b"\x00", 1)
    bomb = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 2_000_000}).encode()
    found[name] = head + b"\x00" + bomb
    with pytest.raises(wire.Garbled, match="more than 100,000,000 bytes"):
        wire.joined(found, 100_000_000)


@given(st.dictionaries(st.text(max_size=4), st.binary(max_size=60), max_size=4))
def test_nonsense_is_refused_whatever_it_is(found: dict[str, bytes]) -> None:
    with pytest.raises(wire.Garbled):
        wire.joined(found, 1000)


@given(st.integers(0, 4), st.integers(0, 500), st.integers(0, 255))
def test_a_message_with_a_flaw_is_refused_or_read(which: int, place: int, byte: int) -> None:
    found = pieces(b"some bytes")
    name = list(found)[which]
    flawed = bytearray(found[name])
    flawed[place % len(flawed)] = byte
    found[name] = bytes(flawed)
    with suppress(wire.Garbled):
        assert len(wire.joined(found, 1000)) <= 1000


def test_a_download_stops_at_its_limit() -> None:
    class Endless:
        def PullObject(self, request: Any) -> Any:
            class Answer:
                object_found, object_available, object_content = True, True, bytes(2**20)

            return Answer

    message = wire.to_node(bytes(30_000_000), 1, 2, 60)
    with pytest.raises(wire.Garbled, match="more than 1,000 bytes"):
        wire.pull(flower.get_object_tree(message), 1, Endless(), None, seconds=1, largest=1000)


def test_keys_that_do_not_do_are_named(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node.key")
    make_certificates(tmp_path)
    public = (tmp_path / "node.key.pub").read_text()
    wire.load_private_key(tmp_path / "node.key")
    with pytest.raises(InputError, match=r"server\.key: not a node key"):
        wire.load_private_key(tmp_path / "server.key")
    with pytest.raises(InputError, match=r"nothing\.key: not a node key"):
        wire.load_private_key(tmp_path / "nothing.key")
    for text in ("", "ssh-ed25519 AAAA", "-----BEGIN PUBLIC KEY-----\n", "nonsense"):
        with pytest.raises(InputError, match="node key of alpha: not a public key"):
            wire.public_key_bytes("alpha", text)
    (tmp_path / "secret").write_bytes(b"x")
    settings = GridSettings("127.0.0.1:1", tmp_path / "ca.crt", tmp_path / "secret")
    with pytest.raises(InputError, match="two hospitals have the same"):
        FlowerTransport(settings, {"alpha": public, "beta": public})
    with pytest.raises(InputError, match=r"not a CA certificate"):
        wire.tls_context(tmp_path / "node.key")


def test_the_proxys_configuration_takes_nothing_that_nginx_would_read_otherwise(tmp_path: Path) -> None:
    def made(listen: str = "0.0.0.0:8443", upstream: str = "127.0.0.1:8000", folder: Path = tmp_path) -> str:
        return nginx_config(listen, tmp_path / "a", tmp_path / "b", upstream, tmp_path / "c", folder)

    assert "listen [::]:8443 ssl;" in made("[::]:8443")
    for wrong in ("8443", "0.0.0.0:8443; location / {}", "", "host:port"):
        with pytest.raises(InputError, match="listen = "):
            made(wrong)
    with pytest.raises(InputError, match="nginx cannot be given this path"):
        made(folder=tmp_path / 'quote"d')
