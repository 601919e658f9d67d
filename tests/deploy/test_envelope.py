"""Requests and replies: what is signed arrives as it was, and nothing else does."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.deploy.envelope import Reply, Request, digest, seal, unseal
from silodp.errors import InputError

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
abouts = st.dictionaries(st.text(max_size=8), values, max_size=4)


@given(
    st.sampled_from(["facts", "agree", "plan", "evaluate", "finish"]),
    st.text(max_size=40), st.text(max_size=40), abouts, st.binary(max_size=200),
)  # fmt: skip
def test_a_request_arrives_as_it_was(kind: str, run: str, hospital: str, about: dict, payload: bytes) -> None:
    request = Request(kind, run, hospital, about, payload)  # type: ignore[arg-type]
    assert unseal(Request, seal(request, KEY), KEY.public_key()) == request


@given(st.binary(max_size=60), st.data())
@settings(max_examples=200)
def test_one_changed_byte_is_refused(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(Reply("answer", "r", "a", {"x": 1}, payload), KEY))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InputError):
        unseal(Reply, bytes(sealed), KEY.public_key())


@given(st.binary(max_size=300))
def test_no_bytes_of_a_stranger_are_a_message(content: bytes) -> None:
    for kind in (Request, Reply):
        with pytest.raises(InputError):
            unseal(kind, content, KEY.public_key())


def test_another_key_another_side_and_a_cut_end_are_refused() -> None:
    request = seal(Request("plan", "r", "a"), KEY)
    reply = seal(Reply("answer", "r", "a", {}, b"numbers"), KEY)
    for content, kind in (
        (seal(Request("plan", "r", "a"), OTHER), Request),
        (seal(Reply("answer", "r", "a"), OTHER), Reply),
        (reply, Request),  # a site's own words do not come back to it as a request
        (request, Reply),
        (reply[:-1], Reply),
        (reply + b"\0", Reply),
    ):
        with pytest.raises(InputError):
            unseal(kind, content, KEY.public_key())


def test_a_signed_message_of_another_version_is_refused_in_a_sentence() -> None:
    for message in (
        Request("unheard-of", "r", "a"),  # type: ignore[arg-type]
        Request("plan", 7, "a"),  # type: ignore[arg-type]
        Request("plan", "r", "a", []),  # type: ignore[arg-type]
        Request("plan", "r", "a", {"x": "x" * 2**22}),  # the header alone is 4 MiB
    ):
        with pytest.raises(InputError, match="use the same version"):
            unseal(Request, seal(message, KEY), KEY.public_key())


def test_the_same_request_has_the_same_bytes() -> None:
    one, other = (seal(Request("plan", "r", "a", {"b": 1, "a": 2}, b"x"), KEY) for _ in range(2))
    assert digest(one) == digest(other)
    assert digest(one) != digest(seal(Request("plan", "r", "a", {"b": 1, "a": 2}, b"y"), KEY))
