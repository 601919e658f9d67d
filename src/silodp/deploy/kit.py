"""A kit: one folder for the coordinator and one for each hospital, with all the files that they need.

    DIR/coordinator/       authority, server certificate, signing key, roster, proxy
    DIR/hospitals/NAME/    authority's certificate, coordinator's public key, its own two keys, its limits

Each private key is in one folder only. A folder is made under another name and renamed when it is complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from silodp.deploy.certificates import SERVER_DAYS, Certified, issue_server, new_authority, read_authority
from silodp.deploy.config import (
    CoordinatorSettings,
    SiteSettings,
    coordinator_folder,
    distinct_names,
    hospital_name,
    read_coordinator,
    split_address,
    validated,
)
from silodp.deploy.folders import exclusive, new_folder, replace_file, write_new
from silodp.deploy.keys import (
    fingerprint,
    new_node_key,
    new_signing_key,
    node_public_text,
    private_pem,
    public_pem,
    read_public_key,
    write_node_key,
    write_private,
)
from silodp.deploy.kit_files import listen_address, write_files
from silodp.deploy.roster import ROSTER, Member, Roster, read_join, read_roster
from silodp.engines.flower.proxy import nginx_config
from silodp.errors import InputError, short
from silodp.files import private_folder

HERE = "localhost:8443"
"""The coordinator's address for a trial on one machine."""
_PRIVATE = ("signing.key", "node.key")


@dataclass(frozen=True)
class Kit:
    """What `init` has made.

    Attributes:
        coordinator: fingerprint of the coordinator's signing key.
        hospitals: fingerprints of the hospitals' signing keys by name, where the kit made them.
    """

    coordinator: str
    hospitals: dict[str, str]


def init(
    folder: Path,
    hospitals: Sequence[str],
    address: str = HERE,
    days: int = SERVER_DAYS,
    with_keys: bool = True,
) -> Kit:
    """Makes a kit in a folder that is new or empty; leaves nothing behind after an error.

    Args:
        folder: of the kit.
        hospitals: their names; at least one.
        address: host:port by which hospitals reach the coordinator's proxy; its certificate names the host.
        days: for which that certificate is valid.
        with_keys: whether to make the hospitals' keys, too; otherwise hospitals make their own with `join`.
    """
    for name in hospitals:
        checked_name(name, "--hospitals")
    if not hospitals:
        raise InputError("--hospitals: name at least one, such as --hospitals Aarhus,Bern,Cork")
    distinct_names(hospitals)
    try:
        settings = validated(CoordinatorSettings, {"address": address})
    except InputError as error:
        raise InputError(f"--{error}") from None
    with new_folder(folder) as place:
        coordinator = place / "coordinator"
        mark = _write_coordinator(coordinator, settings, days, with_keys)
        private_folder(place / "hospitals")
        members = []
        for name in hospitals if with_keys else ():
            site = place / "hospitals" / name
            _write_hospital(site, name, coordinator, address, len(hospitals), keys=True)
            members.append(_write_keys(site, name))
        expected = () if with_keys else tuple(hospitals)
        write_new(coordinator / ROSTER, Roster(hospitals=tuple(members), expected=expected).to_toml())
    return Kit(mark, {member.name: fingerprint(member.signing_key) for member in members})


def join(folder: Path, name: str) -> Member:
    """Makes a hospital's own keys, and NAME.join.toml with their public halves, in a new or empty folder.

    The private halves stay in the folder; NAME.join.toml is for the coordinator.
    """
    import tomli_w

    checked_name(name, "--name")
    with new_folder(folder) as place:
        member = _write_keys(place, name)
        write_new(place / f"{name}.join.toml", tomli_w.dumps(member.model_dump(), multiline_strings=True))
    return member


def admit(folder: Path, file: Path) -> Path:
    """Adds a hospital that made its own keys to the roster, and writes the other files that it needs.

    It can be repeated, after a kill or to write the folder again.

    Args:
        folder: of the kit.
        file: NAME.join.toml.

    Returns:
        The folder for the hospital, without a private key.
    """
    settings, place = read_coordinator(folder), coordinator_folder(folder)
    member = read_join(file)
    if member.signing_key == read_public_key(place / "signing.pub"):
        raise InputError(f"{file}: this is the coordinator's own key; the hospital makes one with `join`")
    with exclusive(place):
        roster = read_roster(place / ROSTER)
        known = roster.member(member.name)
        if known is None:
            roster = roster.with_member(member)
        elif (known.signing_key, known.node_key) != (member.signing_key, member.node_key):
            raise InputError(
                f"{file}: {member.name} is in the roster with other keys; where it has new ones, take "
                f"[hospitals.{member.name}] out of {place / ROSTER} first"
            )
        site = folder / "hospitals" / member.name
        if filled := [name for name in _PRIVATE if (site / name).exists()]:
            raise InputError(
                f"{site / filled[0]}: a key that `init` made; hand the folder over or remove it first"
            )
        private_folder(site.parent)
        count = len(roster.hospitals) + len(roster.expected)
        with new_folder(site, replace=True) as new:
            _write_hospital(new, member.name, place, settings.address, count, keys=False)
        replace_file(place / ROSTER, roster.to_toml().encode(), 0o644)
    return site


def renew(folder: Path, days: int = SERVER_DAYS) -> str:
    """Issues a new key and certificate for the server, from the kit's authority; hospitals need no change.

    Returns:
        The last day on which it is valid.
    """
    settings, place = read_coordinator(folder), coordinator_folder(folder)
    with exclusive(place):
        server = _issue(read_authority(place / "ca.crt", place / "ca.key"), settings, days)
        replace_file(place / "server.key", private_pem(server.key), 0o600)
        replace_file(place / "server.crt", server.pem, 0o644)
    return _until(server)


def checked_name(name: str, option: str) -> str:
    try:
        return hospital_name(name)
    except ValueError as reason:
        raise InputError(f"{option} {short(name)}: {reason}") from None


def _write_coordinator(folder: Path, settings: CoordinatorSettings, days: int, with_keys: bool) -> str:
    """Writes all but the roster; returns the fingerprint of the signing key."""
    authority = new_authority(f"silodp {settings.name} {secrets.token_hex(4)}")
    server, signing = _issue(authority, settings, days), new_signing_key()
    mark = fingerprint(signing.public_key())
    private_folder(folder)
    private_folder(folder / "proxy")  # for what nginx writes
    for name, certified in (("ca", authority), ("server", server)):
        write_new(folder / f"{name}.crt", certified.pem)
        write_private(folder / f"{name}.key", certified.key)
    write_private(folder / "signing.key", signing)
    write_new(folder / "signing.pub", public_pem(signing.public_key()))
    write_new(folder / "superexec.secret", secrets.token_hex(32) + "\n", 0o600)
    facts = {"fingerprint": mark, "server_until": _until(server), "keys": with_keys}
    write_files(folder, "coordinator", **settings.model_dump(), **facts)
    write_new(folder / "nginx.conf", nginx_config(listen_address(settings.address), settings.port))
    return mark


def _issue(authority: Certified, settings: CoordinatorSettings, days: int) -> Certified:
    """Issues the certificate for the proxy, under its public name, and for the SuperLink on loopback."""
    host, _ = split_address(settings.address)
    return issue_server(authority, [host, "localhost", "127.0.0.1", "::1"], days)


def _until(server: Certified) -> str:
    return server.certificate.not_valid_after_utc.date().isoformat()


def _write_hospital(
    folder: Path, name: str, coordinator: Path, address: str, hospitals: int, keys: bool
) -> None:
    """Writes all but the hospital's keys.

    Args:
        folder: of the hospital.
        name: of the hospital.
        coordinator: the coordinator's folder.
        address: of the coordinator.
        hospitals: their number in the federation.
        keys: whether the kit makes the hospital's keys.
    """
    public = read_public_key(coordinator / "signing.pub")
    private_folder(folder)
    write_new(folder / "ca.crt", (coordinator / "ca.crt").read_bytes())
    write_new(folder / "coordinator.pub", public_pem(public))
    page_port = SiteSettings(name=name, superlink=address).page_port
    facts = {"fingerprint": fingerprint(public), "hospitals": hospitals, "keys": keys, "page_port": page_port}
    write_files(folder, "hospital", name=name, address=address, **facts)


def _write_keys(folder: Path, name: str) -> Member:
    """Makes a hospital's two keys in its folder; returns their public halves."""
    signing, node = new_signing_key(), new_node_key()
    member = Member(
        name=name, signing=public_pem(signing.public_key()), node=node_public_text(node.public_key())
    )
    write_private(folder / "signing.key", signing)
    write_node_key(folder / "node.key", node)
    write_new(folder / "signing.pub", member.signing)
    write_new(folder / "node.pub", member.node + "\n")
    return member
