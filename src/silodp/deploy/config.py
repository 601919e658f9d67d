"""The files that people edit before a federation runs across machines, as frozen settings.

    coordinator.toml   where hospitals find the coordinator
    site.toml          a hospital's data and limits; the coordinator cannot change it

`roster.py` has the third one. Errors name the file, the setting, its value and what to do.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from silodp.deploy.limits import Limits
from silodp.errors import InputError, short
from silodp.files import read_toml
from silodp.refusals import describe_error
from silodp.settings import Settings

COORDINATOR, SITE = "coordinator.toml", "site.toml"
FROM_INIT = "give a folder that `silodp deploy init` made"
LONGEST_SOCKET = 107  # bytes of a Unix socket's path on Linux
Kind = TypeVar("Kind", bound=Settings)


def hospital_name(name: str) -> str:
    """Returns a name that is safe in file names, systemd units and shells; else ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise ValueError("choose letters, digits, - and _, at most 64, the first a letter or digit")
    if name.lower() == "coordinator":
        raise ValueError("choose another name; the coordinator is called that")
    return name


def distinct_names(names: Sequence[str]) -> None:
    """Refuses names that differ in case only, which some file systems do not distinguish."""
    again = [name for name, count in Counter(name.lower() for name in names).items() if count > 1]
    if again:
        same = [name for name in names if name.lower() == again[0]]
        raise InputError(f"hospitals {' and '.join(same)}: the same name; give each hospital its own")


def split_address(address: str) -> tuple[str, int]:
    """Splits "fl.example.org:443" into host and port; IPv6 addresses are in brackets."""
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not (1 <= number <= 65535 and (_is_host_name(host) or _is_ip(bare, 6 if bare != host else 4))):
        raise ValueError("choose host:port, such as fl.example.org:443 or [2001:db8::1]:443")
    return bare, number


def _is_host_name(host: str) -> bool:
    """Whether it is a host name; a last label of digits, as in an IP address, is refused."""
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    return len(host) <= 253 and bool(re.fullmatch(rf"({label}\.)*(?![0-9]+$){label}", host))


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _address(address: str) -> str:
    split_address(address)
    return address


def _user(user: int | str | None) -> int | str | None:
    if user == "" or (isinstance(user, int) and user < 0):
        raise ValueError("choose a user's name, or a number of at least 0")
    return user


Name = Annotated[str, AfterValidator(hospital_name)]
Address = Annotated[str, AfterValidator(_address)]
Port = Annotated[int, Field(ge=1, le=65535)]


class CoordinatorSettings(Settings):
    """coordinator.toml."""

    name: Annotated[str, Field(min_length=1)] = "coordinator"
    address: Address
    """host:port that hospitals connect to: the proxy's."""
    port: Port = 18443
    """Of the SuperLink, on loopback: only the proxy and the coordinator reach it."""
    page_port: Port = 8050
    """Of the coordinator's page, on loopback."""


class SiteCohort(Settings):
    """The hospital's own files: any setting of the section `cohort` of an experiment, and which hospital.

    Without a kind, it is recognised as `silodp data check` does.
    """

    model_config = ConfigDict(extra="allow")

    section: ClassVar[str] = "cohort"
    kind: str | None = None
    path: str | None = None
    hospital: str | None = None
    """Which of the hospitals that the files name; by default there is one."""

    @model_validator(mode="after")
    def _kind_has_these_settings(self) -> Self:
        if self.kind is not None:
            from silodp.cohorts import CohortSettings

            CohortSettings.of(**self.given(Path()))
        return self

    def given(self, folder: Path, data: Path | None = None) -> dict[str, Any]:
        """The settings for `CohortSettings.of` and `inspection.recognise`.

        Args:
            folder: of site.toml, where relative paths start.
            data: replaces `path`.
        """
        settings = self.model_dump(exclude={"hospital"}, exclude_none=True)
        place = data or (folder / Path(self.path).expanduser() if self.path is not None else None)
        return settings | ({"path": str(place)} if place is not None else {})


class SiteSettings(Settings):
    """site.toml."""

    name: Name
    superlink: Address
    """host:port of the coordinator, as it is reached from here."""
    socket: Annotated[str, Field(min_length=1)] = "run/site.sock"
    """Where the link finds the site; relative to the folder of site.toml."""
    link_user: Annotated[int | str | None, AfterValidator(_user)] = None
    """Name or number of the user that the link runs as: nobody else is answered; by default the site's."""
    page_port: Port = 8051
    """Of the site's page, on loopback."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    limits: Limits = Limits()
    cohort: SiteCohort = SiteCohort()

    def socket_path(self, folder: Path) -> Path:
        path = (folder / self.socket).absolute()
        if (length := len(os.fsencode(path))) > LONGEST_SOCKET:
            raise InputError(
                f"socket = {short(self.socket)}: {length} bytes with its folder, and Linux takes "
                f"{LONGEST_SOCKET}; choose a shorter path, such as /run/silodp/site.sock"
            )
        return path

    def link_ids(self) -> tuple[int, int | None]:
        """(user, group) of the link: the only user that the site answers, and the socket folder's group.

        The group is None where one user runs both. A number without a name, as in a container, is used for
        both.
        """
        user = self.link_user
        if user is None:
            return os.getuid(), None
        try:
            found = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
        except KeyError:
            if isinstance(user, int):
                return user, user
            raise InputError(
                f"link_user = {short(user)}: there is no such user here; make it with `useradd "
                "--system`, or leave link_user out where one user runs both"
            ) from None
        return found.pw_uid, found.pw_gid


def coordinator_folder(folder: Path) -> Path:
    """The folder of coordinator.toml, from a kit's folder or the coordinator's own in it."""
    for place in (folder / "coordinator", folder):
        if (place / COORDINATOR).is_file():
            return place
    raise InputError(f"{folder}: no {COORDINATOR} is there; {FROM_INIT}")


def read_coordinator(folder: Path) -> CoordinatorSettings:
    path = coordinator_folder(folder) / COORDINATOR
    return read_settings(path, CoordinatorSettings)


def read_site(folder: Path) -> SiteSettings:
    reply = "or copy the coordinator's reply into the one that `silodp deploy join` made"
    return read_settings(folder / SITE, SiteSettings, f"{FROM_INIT}, {reply}")


def read_settings(path: Path, kind: type[Kind], way_out: str = FROM_INIT) -> Kind:
    """Reads a TOML file as these settings; `way_out` ends the error if there is no such file."""
    tree = read_tree(path, way_out)
    try:
        return validated(kind, tree)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def validated(kind: type[Kind], tree: Mapping[str, Any], *above: str) -> Kind:
    """Builds settings; InputError names the first invalid one, below the sections `above`."""
    try:
        return kind(**tree)
    except ValidationError as error:
        raise InputError(describe_error(error, kind, *above)) from None


def read_tree(path: Path, way_out: str = FROM_INIT) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; {way_out}")
    return read_toml(path)
