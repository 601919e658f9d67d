"""Certificates that OpenSSL accepts, and a TLS connection that only the right server opens."""

import datetime
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography import x509

from silodp.deploy.certificates import Certified, issue_server, new_authority
from silodp.deploy.keys import write_private
from silodp.errors import InputError

HOSTS = ("fl.example.org", "localhost", "127.0.0.1", "::1")


@pytest.fixture(scope="module")
def authority() -> Certified:
    return new_authority("silodp test")


@pytest.fixture(scope="module")
def server(authority: Certified) -> Certified:
    return issue_server(authority, HOSTS)


def put(folder: Path, name: str, certified: Certified) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(certified.pem)
    write_private(key, certified.key)
    return certificate, key


def handshake(certificate: Path, key: Path, trusted: Path, host: str) -> str:
    """What a client that trusts one authority, and verifies strictly, has to say of a server."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    theirs = ssl.create_default_context(cafile=str(trusted))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        try:
            with ours.wrap_socket(connection, server_side=True) as secure:
                secure.sendall(b"hello")
        except OSError:
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        plain = socket.create_connection(listening.getsockname(), timeout=30)
        with theirs.wrap_socket(plain, server_hostname=host) as secure:
            return secure.recv(5).decode()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        thread.join(30)
        listening.close()


@pytest.fixture
def trusted(authority: Certified, tmp_path: Path) -> Path:
    return put(tmp_path, "ca", authority)[0]


@pytest.mark.parametrize("host", [*HOSTS, "example.org", "evil.fl.example.org", "127.0.0.2"])
def test_a_client_that_trusts_the_authority_gets_through_under_the_servers_names(
    host: str, server: Certified, trusted: Path, tmp_path: Path
) -> None:
    expected = "hello" if host in HOSTS else "mismatch"
    assert expected in handshake(*put(tmp_path, "server", server), trusted, host)


def test_another_authority_of_the_same_name_is_refused(trusted: Path, tmp_path: Path) -> None:
    other = issue_server(new_authority("silodp test"), HOSTS)
    said = handshake(*put(tmp_path, "server", other), trusted, "localhost")
    assert said not in ("hello", "")


def test_a_server_cannot_act_as_an_authority(server: Certified, trusted: Path, tmp_path: Path) -> None:
    forged = issue_server(server, ["localhost"], days=30)
    chain, key = put(tmp_path, "forged", forged)
    chain.write_bytes(forged.pem + server.pem)
    assert handshake(chain, key, trusted, "localhost") not in ("hello", "")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_openssl_verifies_it(server: Certified, trusted: Path, tmp_path: Path) -> None:
    certificate, _ = put(tmp_path, "server", server)
    strict = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(trusted)]
    for host in ("-verify_hostname", "fl.example.org"), ("-verify_ip", "127.0.0.1"):
        subprocess.run([*strict, *host, str(certificate)], check=True, capture_output=True)
    wrong = subprocess.run([*strict, "-verify_hostname", "other.org", str(certificate)], capture_output=True)
    assert wrong.returncode != 0
    client = [word if word != "sslserver" else "sslclient" for word in strict]
    assert subprocess.run([*client, str(certificate)], capture_output=True).returncode != 0


def test_validity_is_as_asked(authority: Certified) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for certified, days in ((authority, 3650), (issue_server(authority, ["a"]), 730),
                            (issue_server(authority, ["a"], days=3), 3)):  # fmt: skip
        certificate = certified.certificate
        assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
        left = certificate.not_valid_after_utc - now
        assert datetime.timedelta(days=days - 1) < left <= datetime.timedelta(days=days, seconds=1)


def test_the_authority_signs_certificates_and_no_authorities(authority: Certified) -> None:
    found = authority.certificate.extensions
    limits = found.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    usage = found.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


@pytest.mark.parametrize("days", [0, -1, 4000])
def test_days_out_of_range_are_refused(days: int, authority: Certified) -> None:
    with pytest.raises(InputError, match=f"--days {days}: choose 1 to 3650"):
        issue_server(authority, ["a"], days)


def test_a_server_does_not_outlive_its_authority() -> None:
    with pytest.raises(
        InputError, match=r"--days 30: longer than its authority is valid; choose at most (19|20)$"
    ):
        issue_server(new_authority("short", days=20), ["a"], days=30)
