"""Certificates, keys and processes of a small federation on loopback, for the tests of this folder."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from silodp.engines.flower.grid import FlowerTransport, GridSettings
from silodp.engines.flower.link import Handle, LinkSettings, run_link
from silodp.engines.flower.proxy import nginx_config, proxy
from silodp.engines.flower.superlink import SuperLinkSettings, superlink

HOSPITALS = ("alpha", "beta", "gamma")  # `Stage.link` starts their links, in processes of their own
TOY = "delta"  # its link is a thread of the test, or no link at all
LINK = Path(__file__).with_name("echo_link.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = 150) -> None:
    """Waits for something that must come; it may take long on a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen: {what}")
        time.sleep(0.05)


class Stage:
    """A coordinator's SuperLink and proxy, keys of the hospitals, and links that were started."""

    def __init__(self, folder: Path, database: bool = False) -> None:
        self.folder = folder
        make_certificates(folder)
        for name in (*HOSPITALS, TOY, "stranger"):
            make_node_key(folder / f"{name}.key")
        self.roster = {name: (folder / f"{name}.key.pub").read_text() for name in (*HOSPITALS, TOY)}
        (folder / "secret").write_bytes(secrets.token_bytes(32))
        self.superlink_port, self.proxy_port = free_port(), free_port()
        self.settings = SuperLinkSettings(
            self.superlink_port, folder / "ca.crt", folder / "server.crt", folder / "server.key",
            folder / "secret", folder / "superlink", folder / "state.db" if database else None,
        )  # fmt: skip
        self.superlink = superlink(self.settings, self.roster)
        (folder / "nginx").mkdir()
        config = nginx_config(
            self.proxy_address, folder / "server.crt", folder / "server.key", self.settings.address,
            folder / "ca.crt", folder / "nginx",
        )  # fmt: skip
        (folder / "nginx.conf").write_text(config, encoding="utf-8")
        self.proxy = proxy(folder / "nginx.conf", folder / "nginx.log")
        self.links: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.superlink.start()
        self.proxy.start()

    @property
    def proxy_address(self) -> str:
        return f"127.0.0.1:{self.proxy_port}"

    def transport(self, download: float = 20.0) -> FlowerTransport:
        ca, secret = self.folder / "ca.crt", self.folder / "secret"
        return FlowerTransport(
            GridSettings(self.settings.address, ca, secret, download=download), self.roster
        )

    def link(self, name: str) -> subprocess.Popen[bytes]:
        """Starts a link in a process of its own; its log is NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as output:
            self.links[name] = subprocess.Popen(
                [sys.executable, LINK, self.proxy_address, self.folder / "ca.crt",
                 self.folder / f"{name}.key"],
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self.links[name]

    @contextmanager
    def toy(self, handle: Handle, key: str = TOY, ca: str = "ca.crt") -> Iterator[LinkSettings]:
        """A link in a thread, which has signed off at the end."""
        stop = threading.Event()
        settings = LinkSettings(self.proxy_address, self.folder / ca, self.folder / f"{key}.key")
        thread = threading.Thread(target=run_link, args=(settings, handle, stop))
        thread.start()
        try:
            yield settings
        finally:
            stop.set()
            thread.join()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self.links.pop(name)
        process.send_signal(how)
        process.wait(30)

    def stop(self) -> None:
        for process in self.links.values():
            process.kill()
            process.wait()
        self.proxy.stop()
        self.superlink.stop()


def make_node_key(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_name(path.name + ".pub").write_bytes(key.public_key().public_bytes(*public))


def make_certificates(folder: Path) -> None:
    """ca.crt; server.crt and server.key for 127.0.0.1; other.crt of a CA that signed nothing here."""
    ca_key, ca = _authority("tests")
    other = _authority("others")[1]
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]  # fmt: skip
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    server = (
        _certificate("localhost", ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(usage, critical=False)
        .add_extension(_identifier(ca_key), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    for name, certificate in (("ca", ca), ("other", other), ("server", server)):
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    use = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _certificate(name, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def _certificate(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
