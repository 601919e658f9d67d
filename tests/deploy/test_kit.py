"""A kit: who gets which file, with which mode, and that it is there whole or not at all."""

import base64
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from processes import as_user

from silodp.deploy import kit_files
from silodp.deploy.config import read_coordinator, read_site
from silodp.deploy.keys import (
    fingerprint,
    node_public_text,
    read_public_key,
    read_signing_key,
)
from silodp.deploy.kit import admit, init, join, renew
from silodp.deploy.roster import Roster, read_join, read_roster
from silodp.engines.flower.wire import load_private_key
from silodp.errors import InputError

HOSPITALS = ("Aarhus", "Bern", "Cork")
SECRET = {"ca.key", "server.key", "signing.key", "node.key", "superexec.secret"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit that nobody changes."""
    folder = tmp_path_factory.mktemp("kits") / "kit"
    init(folder, HOSPITALS, "fl.example.org:443")
    return folder


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kit")


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def secrets_in(folder: Path) -> dict[Path, bytes]:
    """What is secret in each secret file: the private number of a key, the secret itself."""
    found = {}
    for path in files(folder):
        if path.name == "superexec.secret":
            found[path] = bytes.fromhex(path.read_text())
        elif path.suffix == ".key":
            load = load_ssh_private_key if path.name == "node.key" else load_pem_private_key
            key = load(path.read_bytes(), None)
            if isinstance(key, Ed25519PrivateKey):
                found[path] = key.private_bytes_raw()
            else:
                assert isinstance(key, EllipticCurvePrivateKey)
                found[path] = key.private_numbers().private_value.to_bytes(key.key_size // 8, "big")
    return found


def shows(content: bytes, secret: bytes) -> bool:
    """As it is, in hex, or within base64, wherever it begins there."""
    flat = b"".join(content.split())
    coded = (base64.b64encode(b"\0" * before + secret)[4:-4] for before in range(3))
    return secret in content or secret.hex().encode() in flat or any(one in flat for one in coded)


def test_each_folder_has_what_it_needs(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {"coordinator", "hospitals"}
    assert {path.name for path in (made / "coordinator").iterdir()} == {
        "ca.crt", "ca.key", "server.crt", "server.key", "signing.key", "signing.pub", "superexec.secret",
        "coordinator.toml", "roster.toml", "nginx.conf", "systemd", "compose.yaml", "README.md", "proxy",
    }  # fmt: skip
    assert {path.name for path in (made / "hospitals").iterdir()} == set(HOSPITALS)
    for name in HOSPITALS:
        assert {path.name for path in (made / "hospitals" / name).iterdir()} == {
            "ca.crt", "node.key", "node.pub", "signing.key", "signing.pub", "coordinator.pub", "site.toml",
            "systemd", "compose.yaml", "README.md",
        }  # fmt: skip


def test_the_files_fit_together(made: Path) -> None:
    coordinator = made / "coordinator"
    assert read_coordinator(made).address == "fl.example.org:443"
    roster = read_roster(coordinator / "roster.toml")
    assert (roster.names, roster.expected) == (HOSPITALS, ())
    mark = fingerprint(read_signing_key(coordinator / "signing.key").public_key())
    assert len(bytes.fromhex((coordinator / "superexec.secret").read_text())) == 32
    for member in roster.hospitals:
        site = made / "hospitals" / member.name
        assert (read_site(site).name, read_site(site).superlink) == (member.name, "fl.example.org:443")
        assert fingerprint(read_public_key(site / "coordinator.pub")) == mark
        assert mark in (site / "README.md").read_text()
        assert (site / "ca.crt").read_bytes() == (coordinator / "ca.crt").read_bytes()
        signing = read_signing_key(site / "signing.key").public_key()
        assert fingerprint(signing) == fingerprint(member.signing_key)
        assert fingerprint(signing) == fingerprint(read_public_key(site / "signing.pub"))
        node = node_public_text(load_private_key(site / "node.key").public_key())
        assert (member.node, (site / "node.pub").read_text()) == (node, node + "\n")


def test_what_site_toml_shows_as_a_choice_can_be_chosen(kit: Path) -> None:
    """Every commented setting, uncommented, is one."""
    path = kit / "hospitals/Bern/site.toml"
    text = path.read_text().replace("\n# ", "\n")
    path.write_text(text)
    site = read_site(path.parent)
    assert (site.link_user, site.device, site.limits.delta) == ("silodp-link", "cuda", 0.01)
    assert (site.limits.rounds_at_most, site.cohort.kind, site.cohort.hospital) == (100, "folder", "Bern")


@pytest.mark.parametrize("umask", [0, 0o077])
def test_secrets_and_folders_are_their_owners_alone(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        init(tmp_path / "kit", ["A", "B"])
        join(tmp_path / "own", "C")
        admit(tmp_path / "kit", tmp_path / "own/C.join.toml")
    finally:
        os.umask(before)
    places = [tmp_path / "kit", tmp_path / "own"]
    for path in [*places, *(below for place in places for below in place.rglob("*"))]:
        mode = stat.S_IMODE(path.stat().st_mode)
        expected = 0o700 if path.is_dir() else 0o600 if path.name in SECRET else 0o644
        assert mode == expected, path


def test_a_secret_is_in_one_file_only(made: Path) -> None:
    """The coordinator's in no hospital's folder, a hospital's in no other's and not in the coordinator's."""
    secrets = secrets_in(made)
    assert len(secrets) == 4 + 2 * len(HOSPITALS)
    contents = {path: path.read_bytes() for path in files(made)}
    for home, secret in secrets.items():
        assert [path for path, content in contents.items() if shows(content, secret)] == [home]
    for path, content in contents.items():
        assert (b"PRIVATE KEY" in content) == (path.suffix == ".key"), path


def test_no_two_kits_share_a_key_or_a_certificate(made: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", HOSPITALS, "fl.example.org:443")
    one, other = ({path.relative_to(folder): path.read_bytes() for path in files(folder)}
                  for folder in (made, tmp_path / "other"))  # fmt: skip
    for name, content in one.items():
        if name.suffix in (".key", ".pub", ".crt", ".secret"):
            assert content != other[name], name


def test_a_folder_that_is_no_new_one_is_refused_and_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "mine", tmp_path / "file"):
        for make in (lambda: init(place, ["A"]), lambda: join(place, "A")):  # noqa: B023
            with pytest.raises(InputError, match="exists already and is not empty; give a new folder"):
                make()
    with pytest.raises(InputError, match="is no folder; make it first"):
        init(tmp_path / "nowhere/kit", ["A"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="you are in it; give a new folder"):
        init(Path("."), ["A"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "file", "mine"]
    (tmp_path / "empty").mkdir(mode=0o755)
    init(tmp_path / "empty", ["A"])
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_init_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def put(path: Path, content: str | bytes, mode: int = 0o644) -> None:
        written.append(path)
        if path.name == "site.toml":
            raise error
        path.write_bytes(b"")

    monkeypatch.setattr(kit_files, "write_new", put)
    with pytest.raises(type(error)):
        init(tmp_path / "kit", ["A"])
    assert len(written) > 5
    assert list(tmp_path.iterdir()) == []


DIES = """
import os, signal, sys
from pathlib import Path
from silodp.deploy import kit
kit.Roster.to_toml = lambda self: os.kill(os.getpid(), signal.SIGKILL)
kit.init(Path(sys.argv[1]), ["A", "B"])
"""


def test_a_killed_init_leaves_no_kit_and_the_next_one_clears_up(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "kit")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "kit").exists()
    (left,) = tmp_path.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    init(tmp_path / "kit", ["A"])
    assert [path.name for path in tmp_path.iterdir()] == ["kit"]
    assert [path.name for path in (tmp_path / "kit/hospitals").iterdir()] == ["A"]


def test_what_stands_in_the_way_is_neither_used_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir(mode=0o755)
    (tmp_path / "precious/file").write_text("mine")
    (tmp_path / ".kit.silodp-new").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="belongs to another user and is in the way; remove it"):
        init(tmp_path / "kit", ["A"])
    assert (tmp_path / "precious/file").read_text() == "mine"
    assert stat.S_IMODE((tmp_path / "precious").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hospitals": []}, "--hospitals: name at least one"),
        ({"hospitals": [""]}, "--hospitals '': choose letters"),
        ({"hospitals": ["A", "../B"]}, "--hospitals '../B': choose letters"),
        ({"hospitals": ["A", "-rf"]}, "--hospitals '-rf': choose letters"),
        ({"hospitals": ["Ä"]}, "--hospitals 'Ä': choose letters"),
        ({"hospitals": ["A", "b", "B"]}, "hospitals b and B: the same name"),
        ({"address": "here"}, "--address = 'here': choose host:port"),
        ({"days": 0}, "--days 0: choose 1 to 3650"),
    ],
    ids=str,
)
def test_bad_names_addresses_and_days_are_refused(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        init(tmp_path / "kit", **{"hospitals": ["A"], **given})
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_join_and_admit_without_a_private_key_on_the_way(tmp_path: Path) -> None:
    kit, own = tmp_path / "kit", tmp_path / "own"
    init(kit, HOSPITALS, "10.0.0.7:8443", with_keys=False)
    assert read_roster(kit / "coordinator/roster.toml") == Roster(expected=HOSPITALS)
    assert list((kit / "hospitals").iterdir()) == []
    member = join(own, "Bern")
    assert {path.name for path in own.iterdir()} == {
        "signing.key", "signing.pub", "node.key", "node.pub", "Bern.join.toml",
    }  # fmt: skip
    assert read_join(own / "Bern.join.toml") == member
    site = admit(kit, own / "Bern.join.toml")
    assert site == kit / "hospitals/Bern"
    roster = read_roster(kit / "coordinator/roster.toml")
    assert (roster.names, roster.expected) == (("Bern",), ("Aarhus", "Cork"))
    assert roster.member("Bern") == member
    secrets = secrets_in(own)
    assert len(secrets) == 2
    for path in files(kit):
        if not path.is_relative_to(kit / "coordinator"):
            assert b"PRIVATE KEY" not in path.read_bytes()
        assert not any(shows(path.read_bytes(), secret) for secret in secrets.values()), path
    shutil.copytree(site, own, dirs_exist_ok=True)  # as the hospital is told to
    init(tmp_path / "whole", ["Bern"])
    whole = {path.name for path in (tmp_path / "whole/hospitals/Bern").iterdir()}
    assert {path.name for path in own.iterdir()} == whole | {"Bern.join.toml"}
    assert read_site(own).superlink == "10.0.0.7:8443"


def test_admitting_again_changes_nothing_and_other_keys_are_refused(kit: Path, tmp_path: Path) -> None:
    join(tmp_path / "own", "Delft")
    file = tmp_path / "own/Delft.join.toml"
    site = admit(kit, file)
    before = {path: path.read_bytes() for path in files(kit)}
    (site / "README.md").unlink()
    assert admit(kit, file) == site
    assert {path: path.read_bytes() for path in files(kit)} == before
    join(tmp_path / "other", "Delft")
    with pytest.raises(InputError, match=r"Delft is in the roster with other keys; where it has new ones"):
        admit(kit, tmp_path / "other/Delft.join.toml")
    join(tmp_path / "case", "DELFT")
    with pytest.raises(InputError, match="hospitals Delft and DELFT: the same name"):
        admit(kit, tmp_path / "case/DELFT.join.toml")
    file.write_text(file.read_text().replace('"Delft"', '"Aarhus"'))
    with pytest.raises(InputError, match="Aarhus is in the roster with other keys"):
        admit(kit, file)
    assert {path: path.read_bytes() for path in files(kit)} == before


def test_one_hospital_cannot_join_with_anothers_key_or_the_coordinators(kit: Path, tmp_path: Path) -> None:
    join(tmp_path / "own", "Delft")
    file = tmp_path / "own/Delft.join.toml"
    told = tomllib.loads(file.read_text())
    before = (kit / "coordinator/roster.toml").read_bytes()
    theirs = (kit / "hospitals/Bern/node.pub").read_text().strip()
    file.write_text(f'name = "Delft"\nsigning = """{told["signing"]}"""\nnode = "{theirs}"\n')
    with pytest.raises(InputError, match="node of Delft: the same key as node of Bern"):
        admit(kit, file)
    coordinators = (kit / "coordinator/signing.pub").read_text()
    file.write_text(f'name = "Delft"\nsigning = """{coordinators}"""\nnode = "{told["node"]}"\n')
    with pytest.raises(InputError, match="this is the coordinator's own key"):
        admit(kit, file)
    assert (kit / "coordinator/roster.toml").read_bytes() == before
    assert not (kit / "hospitals/Delft").exists()


def test_a_key_that_init_made_is_not_written_over(kit: Path, tmp_path: Path) -> None:
    """The coordinator forgets Bern; its folder with private keys is still there."""
    join(tmp_path / "own", "Bern")
    roster = read_roster(kit / "coordinator/roster.toml")
    others = tuple(member for member in roster.hospitals if member.name != "Bern")
    (kit / "coordinator/roster.toml").write_text(Roster(hospitals=others).to_toml())
    with pytest.raises(InputError, match=r"signing\.key: a key that `init` made; hand the folder over"):
        admit(kit, tmp_path / "own/Bern.join.toml")
    shutil.rmtree(kit / "hospitals/Bern")
    admit(kit, tmp_path / "own/Bern.join.toml")


def test_a_new_server_certificate_by_the_same_authority(kit: Path, made: Path) -> None:
    place = kit / "coordinator"
    before = {path: path.read_bytes() for path in files(kit)}
    until = renew(kit, days=90)
    after = {path: path.read_bytes() for path in files(kit)}
    changed = {path.name for path in before if before[path] != after[path]}
    assert (changed, before.keys()) == ({"server.crt", "server.key"}, after.keys())
    authority, server = (
        x509.load_pem_x509_certificate((place / name).read_bytes()) for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    assert server.not_valid_after_utc.date().isoformat() == until
    key = load_pem_private_key((place / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()
    assert stat.S_IMODE((place / "server.key").stat().st_mode) == 0o600
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    shutil.copy(place / "server.key", place / "ca.key")
    with pytest.raises(
        InputError, match=r"ca\.key: not the key of .*ca\.crt; put that of the same kit there"
    ):
        renew(kit)
    (place / "ca.key").unlink()
    with pytest.raises(InputError, match=r"ca\.key: there is no such file; put it back for the renewal"):
        renew(kit)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two other users")
def test_two_users_each_read_their_own_part_only(made: Path) -> None:
    """Owners and modes as a hospital's README.md sets them, by number."""
    site, link = 45001, 45002
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        home = shutil.copytree(made / "hospitals/Bern", Path(outer) / "Bern")
        for path in (home, *home.rglob("*")):
            os.chown(path, site, link)
        os.chown(home / "node.key", link, link)
        home.chmod(0o710)
        names = ("site.toml", "ca.crt", "coordinator.pub", "signing.key", "node.key")

        def read() -> str:
            return "".join(str(int(os.access(home / name, os.R_OK))) for name in names)

        assert as_user(site, read, [link]) == "11110"
        assert as_user(link, read) == "11101"
        assert as_user(45003, read) == "00000"


LISTENS = {
    "fl.example.org:8443": "0.0.0.0:8443", "10.0.0.7:8443": "0.0.0.0:8443", "[2001:db8::1]:8443": "[::]:8443",
    "localhost:8443": "127.0.0.1:8443", "127.0.0.1:8443": "127.0.0.1:8443", "[::1]:8443": "[::1]:8443",
}  # fmt: skip


@pytest.mark.parametrize("address", LISTENS)
def test_the_proxy_listens_on_loopback_only_where_hospitals_come_over_it(
    address: str, tmp_path: Path
) -> None:
    init(tmp_path / "kit", ["A"], address)
    moved = tmp_path / "a place" / "coordinator"  # nginx takes it wherever the kit lies
    moved.parent.mkdir()
    (tmp_path / "kit/coordinator").rename(moved)
    assert f"listen {LISTENS[address]} ssl;" in (moved / "nginx.conf").read_text()
    if nginx := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"):
        words = [nginx, "-t", "-p", f"{moved}/", "-c", "nginx.conf", "-e", "stderr"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_docs_show_the_proxy_as_it_is(made: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs/deploy.md").read_text(encoding="utf-8")
    assert f"```nginx\n{(made / 'coordinator/nginx.conf').read_text()}```" in docs


def units(kit: Path) -> list[Path]:
    return [*(kit / "coordinator/systemd").iterdir(), *(kit / "hospitals/Bern/systemd").iterdir()]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_units(kit: Path) -> None:
    for path in units(kit):  # programs that are here
        lines = path.read_text().splitlines()
        start = ["ExecStart=/bin/true" if line.startswith("ExecStart=") else line for line in lines]
        path.write_text("\n".join(start))
    for folder in {path.parent for path in units(kit)}:
        paths = sorted(map(str, folder.iterdir()))
        done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.splitlines() if "silodp" in line] == []


def test_the_units_keep_the_site_off_the_network_and_the_link_off_the_data(kit: Path) -> None:
    folder = kit / "hospitals/Bern/systemd"
    site, link = ((folder / f"silodp-{name}.service").read_text().splitlines() for name in ("site", "link"))
    for unit in (site, link):
        assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes", "Restart=always"} <= {*unit}
    assert {"User=silodp-site", "PrivateNetwork=yes"} <= {*site}
    assert "User=silodp-link" in link
    assert {"InaccessiblePaths=-/srv/silodp/data",
            "InaccessiblePaths=-/var/lib/silodp/Bern/signing.key"} <= {*link}  # fmt: skip
    assert not any(line.startswith("ReadWritePaths") for line in link)


def test_one_proxy_only_where_services_run_it(kit: Path) -> None:
    """The coordinator starts nginx itself unless it is told not to."""
    unit = (kit / "coordinator/systemd/silodp-coordinator.service").read_text()
    assert "deploy coordinator /var/lib/silodp/coordinator --no-proxy\n" in unit
    assert "[silodp, deploy, coordinator, /kit, --no-proxy]" in (kit / "coordinator/compose.yaml").read_text()


def test_what_the_units_start_is_a_command(kit: Path) -> None:
    from typer.main import get_command

    from silodp.cli.deploy import deploy

    known = get_command(deploy).commands  # type: ignore[attr-defined]
    started = [
        line.split()[2:] for path in units(kit) for line in path.read_text().splitlines()
        if line.startswith("ExecStart=") and " deploy " in line
    ]  # fmt: skip
    assert sorted(words[0] for words in started) == ["coordinator", "link", "site"]
    for name, *rest in started:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options


def test_the_compose_files_keep_them_apart_too(kit: Path) -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((kit / "hospitals/Bern/compose.yaml").read_text())["services"]
    site, link = services["site"], services["link"]
    assert site["network_mode"] == "none"
    assert site["user"] != link["user"]
    mounts = {name: " ".join(one["volumes"]) for name, one in services.items()}
    assert "node.key" not in mounts["site"]
    assert "signing.key" not in mounts["link"]
    assert "/data" not in mounts["link"]
    coordinators = yaml.safe_load((kit / "coordinator/compose.yaml").read_text())["services"]
    for one in (*services.values(), *coordinators.values()):
        assert (one["cap_drop"], one["read_only"]) == (["ALL"], True)
    mentioned = {path.split(":")[0] for one in services.values() for path in one["volumes"]}
    missing = {
        path for path in mentioned if path.startswith("./") and not (kit / "hospitals/Bern" / path).exists()
    }
    assert missing == {"./run", "./state"}  # made as README.md says
