"""roster.toml: the hospitals that may take part, by public keys. It overrides Flower's list of nodes.

expected = ["Cork"]            # will send its keys
[hospitals.Aarhus]
signing = '''-----BEGIN PUBLIC KEY----- …'''
node = "ecdsa-sha2-nistp384 …"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from silodp.deploy.config import Name, distinct_names, read_settings, read_tree, validated
from silodp.errors import InputError, short
from silodp.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ROSTER = "roster.toml"


class Member(Settings):
    """A hospital in the roster."""

    name: Name
    signing: str
    """Its Ed25519 public key in PEM: what it signs counts as its own."""
    node: str
    """Its node's public key as OpenSSH writes it, the only one with which it can connect."""

    @model_validator(mode="after")
    def _keys_can_be_read(self) -> Self:
        _ = self.signing_key, self.node_key
        return self

    @property
    def signing_key(self) -> Ed25519PublicKey:
        from silodp.deploy.keys import read_public_key

        return read_public_key(
            self.signing.encode(), f"signing of {self.name}", "put the text of its signing.pub there"
        )

    @property
    def node_key(self) -> EllipticCurvePublicKey:
        from silodp.deploy.keys import read_node_public_key

        return read_node_public_key(self.node, f"node of {self.name}")


class Roster(Settings):
    """roster.toml: no two hospitals share a name or a key.

    Attributes:
        hospitals: those whose keys are known, in the order of the file.
        expected: names of hospitals whose keys will be added with `silodp deploy admit`.
    """

    hospitals: tuple[Member, ...] = ()
    expected: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _nobody_twice(self) -> Self:
        from silodp.deploy.keys import fingerprint

        distinct_names([*self.names, *self.expected])
        seen: dict[str, str] = {}
        for member in self.hospitals:
            for what, key in (("signing", member.signing_key), ("node", member.node_key)):
                place = f"{what} of {member.name}"
                if (first := seen.setdefault(fingerprint(key), place)) != place:
                    raise InputError(
                        f"{place}: the same key as {first}; each hospital makes its own with "
                        "`silodp deploy join`"
                    )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.hospitals)

    @property
    def nodes(self) -> dict[str, EllipticCurvePublicKey]:
        """The public key of each hospital's node."""
        return {member.name: member.node_key for member in self.hospitals}

    def member(self, name: str) -> Member | None:
        return next((member for member in self.hospitals if member.name == name), None)

    def with_member(self, member: Member) -> Roster:
        """The roster with one more member, no longer expected; InputError where a name or key is taken."""
        expected = tuple(name for name in self.expected if name != member.name)
        return validated(Roster, {"hospitals": (*self.hospitals, member), "expected": expected})

    def to_toml(self) -> str:
        import tomli_w

        hospitals = {member.name: member.model_dump(exclude={"name"}) for member in self.hospitals}
        content: dict[str, Any] = {"expected": list(self.expected), "hospitals": hospitals}
        return tomli_w.dumps(content, multiline_strings=True)


def read_roster(path: Path) -> Roster:
    """Reads a roster; hospitals are its tables [hospitals.NAME]."""
    tree = read_tree(path)
    try:
        hospitals = tree.pop("hospitals", {})
        if not (isinstance(hospitals, dict) and all(isinstance(one, dict) for one in hospitals.values())):
            raise InputError(f"hospitals = {short(hospitals)}: write a table [hospitals.NAME] for each")
        members = tuple(
            validated(Member, {**one, "name": name}, f"hospitals.{name}") for name, one in hospitals.items()
        )
        return validated(Roster, {**tree, "hospitals": members})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_join(path: Path) -> Member:
    """Reads NAME.join.toml: a hospital's name and the public halves of its keys."""
    return read_settings(path, Member, "give the NAME.join.toml that `silodp deploy join` made")
