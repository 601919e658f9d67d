"""What people write into coordinator.toml, roster.toml and site.toml, and what is said where it cannot be."""

import functools
import os
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from silodp.deploy.config import (
    coordinator_folder,
    hospital_name,
    read_coordinator,
    read_site,
    split_address,
)
from silodp.deploy.keys import new_node_key, new_signing_key, node_public_text, public_pem
from silodp.deploy.roster import Member, Roster, read_join, read_roster
from silodp.errors import InputError

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z0-9]{1,5}){0,3}\.[a-z]{2,6}", fullmatch=True)


@functools.cache
def public_keys(number: int) -> dict[str, str]:
    """Of the hospital with this number: the same at every call."""
    return {
        "signing": public_pem(new_signing_key().public_key()),
        "node": node_public_text(new_node_key().public_key()),
    }


def member(name: str, number: int) -> Member:
    return Member(name=name, **public_keys(number))


def test_a_coordinator_needs_an_address_only(tmp_path: Path) -> None:
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "coordinator/coordinator.toml").write_text('address = "fl.example.org:443"')
    for folder in (tmp_path, tmp_path / "coordinator"):
        assert coordinator_folder(folder) == tmp_path / "coordinator"
        found = read_coordinator(folder)
        assert (found.address, found.port, found.page_port) == ("fl.example.org:443", 18443, 8050)
    with pytest.raises(ValidationError):
        found.port = 1  # type: ignore[misc]


SITE = 'name = "Aarhus"\nsuperlink = "fl.example.org:443"\n'


def test_a_site_has_limits_of_its_own_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    site = read_site(tmp_path)
    limits = site.limits
    assert (limits.epsilon, limits.delta, limits.intermediaries_at_most) == (8.0, None, 1)
    assert limits.validation_metrics is False
    assert site.socket_path(tmp_path) == tmp_path / "run/site.sock"
    assert site.link_ids() == (os.getuid(), None)
    assert site.cohort.given(tmp_path) == {}
    assert site.cohort.given(tmp_path, Path("/data")) == {"path": "/data"}


def test_a_sites_cohort_has_the_settings_of_its_kind(tmp_path: Path) -> None:
    cohort = '[cohort]\nkind = "folder"\npath = "scans"\nimage_size = 64\nhospital = "Aarhus"\n'
    (tmp_path / "site.toml").write_text(SITE + 'link_user = "root"\n' + cohort)
    site = read_site(tmp_path)
    assert site.cohort.hospital == "Aarhus"
    folder = {"kind": "folder", "image_size": 64}
    assert site.cohort.given(tmp_path) == folder | {"path": str(tmp_path / "scans")}
    assert site.cohort.given(tmp_path, Path("/elsewhere")) == folder | {"path": "/elsewhere"}
    assert site.link_ids() == (0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "site.toml: not valid TOML ("),
        ('superlink = "a:1"', "site.toml: name: is missing; set it to a text"),
        ('name = "A"', "site.toml: superlink: is missing; set it to a text"),
        ('name = "a b"\nsuperlink = "a:1"', "site.toml: name = 'a b': choose letters, digits, - and _"),
        ('name = "A"\nsuperlink = "a"', "site.toml: superlink = 'a': choose host:port, such as"),
        (SITE + 'sockets = "x"', "site.toml: sockets: no such setting; there are name, superlink, socket,"),
        (SITE + "page_port = 0", "site.toml: page_port = 0: choose a whole number from 1 to 65535"),
        (SITE + 'device = "tpu"', "site.toml: device = 'tpu': choose one of auto, cpu, cuda"),
        (SITE + "link_user = -1", "site.toml: link_user = -1: choose a user's name, or a number"),
        (SITE + "limits = 5", "site.toml: limits = 5: it is a section; set what is in it, such as"),
        (SITE + "[limits]\nepsilon = 0", "site.toml: limits.epsilon = 0: choose a number above 0"),
        (SITE + "[limits]\nepsilon = inf", "site.toml: limits.epsilon = inf: choose a number above 0"),
        (SITE + "[limits]\ndelta = 0.5", "site.toml: limits.delta = 0.5: choose a number above 0"),
        (SITE + "[limits]\nintermediaries_at_most = 0", "limits.intermediaries_at_most = 0: choose"),
        (SITE + "[limits]\nepsilonn = 1", "limits.epsilonn: no such setting; there are epsilon,"),
        (SITE + '[cohort]\nkind = "foldr"', "site.toml: cohort.kind = 'foldr': choose one of"),
        (SITE + '[cohort]\nkind = "npz"\nimage_size = 1', "site.toml: cohort.image_size = 1: choose"),
    ],
)  # fmt: skip
def test_a_bad_site_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_site(tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"site\.toml: there is no such file; .*deploy init. made, or copy the"
    ):
        read_site(tmp_path)
    with pytest.raises(InputError, match=r"no coordinator\.toml is there; give a folder that `silodp deploy"):
        read_coordinator(tmp_path)
    with pytest.raises(InputError, match=r"give the NAME\.join\.toml that `silodp deploy join` made"):
        read_join(tmp_path / "A.join.toml")
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"site\.toml: not valid TOML"):
        read_site(tmp_path)


def test_a_socket_that_linux_cannot_open_and_a_user_who_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE + f'socket = "{"x" * 108}"\nlink_user = "nobody-here"\n')
    site = read_site(tmp_path)
    with pytest.raises(InputError, match="and Linux takes 107; choose a shorter path"):
        site.socket_path(tmp_path)
    with pytest.raises(InputError, match="link_user = 'nobody-here': there is no such user here; make it"):
        site.link_ids()
    (tmp_path / "site.toml").write_text(SITE + "link_user = 3123456\n")
    assert read_site(tmp_path).link_ids() == (3123456, 3123456)


@given(NAMES | st.text(max_size=80))
def test_plain_names_are_names_and_others_are_refused(name: str) -> None:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and name[0] not in "-_"
    if plain and len(name) <= 64:
        assert hospital_name(name) == name
    else:
        with pytest.raises(ValueError, match="choose letters"):
            hospital_name(name)


@given(HOSTS | st.ip_addresses().map(str), st.integers(1, 65535))
def test_addresses_are_taken_apart(host: str, port: int) -> None:
    text = f"[{host}]" if ":" in host else host
    assert split_address(f"{text}:{port}") == (host, port)


@pytest.mark.parametrize(
    "address",
    ["", "host", ":443", "host:", "host:0", "host:65536", "host:+1", "host:٣", "a b:1", "::1:443", "[a.b]:1",
     "http://host:1", "host:1;", "1.2.3:5", "[1.2.3.4]:5", "host\n:1", "*.example.org:1", "ünich.de:1",
     "a..b:1", "-a:1", "a/b:1", "256.1.1.1:1"],
)  # fmt: skip
def test_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="choose host:port"):
        split_address(address)


@given(st.lists(NAMES, unique_by=str.lower, max_size=6), st.integers(0, 6))
def test_a_roster_comes_back_as_it_was_written(names: list[str], known: int) -> None:
    members = tuple(member(name, number) for number, name in enumerate(names[:known]))
    roster = Roster(hospitals=members, expected=tuple(names[known:]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "roster.toml")
        path.write_text(roster.to_toml())
        assert read_roster(path) == roster


def test_one_more_hospital_is_no_longer_expected() -> None:
    roster = Roster(hospitals=(member("A", 0),), expected=("B", "C"))
    more = roster.with_member(member("B", 1))
    assert (more.names, more.expected) == (("A", "B"), ("C",))
    assert more.member("B") == member("B", 1)
    assert more.member("C") is None
    for again in (member("a", 2), member("c", 2)):
        with pytest.raises(InputError, match="the same name; give each hospital its own"):
            more.with_member(again)


@pytest.mark.parametrize("shared", ["signing", "node"])
def test_a_key_that_is_there_twice_is_refused_however_it_is_written(shared: str, tmp_path: Path) -> None:
    other = public_keys(1) | {shared: public_keys(0)[shared] + (" comment" if shared == "node" else "\n\n")}
    with pytest.raises(InputError, match=f"{shared} of B: the same key as {shared} of A; each hospital"):
        Roster().with_member(member("A", 0)).with_member(Member(name="B", **other))


def test_a_bad_roster_is_one_sentence_and_shows_no_private_key(tmp_path: Path) -> None:
    pem = new_signing_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    node = public_keys(0)["node"]
    path = tmp_path / "roster.toml"
    for text, says in (
        ("hospitals = 3", "roster.toml: hospitals = 3: write a table [hospitals.NAME] for each"),
        ("[hospitals]\nA = 3", "write a table [hospitals.NAME] for each"),
        (f'[hospitals.A]\nnode = "{node}"', "roster.toml: hospitals.A.signing: is missing"),
        (f'[hospitals.A]\nnode = "{node}"\nsigning = """{pem}"""', "signing of A: not a public key in PEM"),
        ('expected = ["a/b"]', "roster.toml: expected.0 = 'a/b': choose letters"),
        ("hospital = 3", "roster.toml: hospital: no such setting; there are hospitals, expected"),
        ('[hospitals."a b"]\nnode = "x"\nsigning = "y"', "hospitals.a b.name = 'a b': choose letters"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            read_roster(path)
        assert says in str(caught.value)
        assert pem.splitlines()[1] not in str(caught.value)
