"""The consortium's own certificate authority, and the certificate that the coordinator shows to hospitals.

Hospitals trust this authority, and no public one, for this connection only. Its key signs nothing but server
certificates, so it can be kept offline until the next one is due.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from silodp.deploy.keys import LARGEST
from silodp.errors import InputError
from silodp.files import read_plain

AUTHORITY_DAYS, SERVER_DAYS = 3650, 730
LONGEST_NAME = 64  # characters of a common name
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


@dataclass(frozen=True)
class Certified:
    """A key and the certificate for it."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate; never the key."""
        return self.certificate.public_bytes(Encoding.PEM)


def new_authority(name: str, days: int = AUTHORITY_DAYS) -> Certified:
    """Makes a self-signed authority, which may sign server certificates but no further authority."""
    key = generate_private_key(SECP256R1())
    subject = _named(name)
    builder = (
        _builder(subject, subject, key, _until(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return Certified(builder.sign(key, SHA256()), key)


def read_authority(certificate: Path, key: Path) -> Certified:
    """Reads an authority's certificate and key; refuses a key that is not the certificate's."""
    try:
        found = x509.load_pem_x509_certificate(read_plain(certificate, LARGEST))
        private = load_pem_private_key(read_plain(key, LARGEST), None)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: there is no such file; put it back for the renewal") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{certificate}, {key}: not a certificate and a key in PEM ({error})") from None
    if not isinstance(private, EllipticCurvePrivateKey) or private.public_key() != found.public_key():
        raise InputError(f"{key}: not the key of {certificate}; put that of the same kit there")
    return Certified(found, private)


def issue_server(authority: Certified, hosts: Sequence[str], days: int = SERVER_DAYS) -> Certified:
    """Issues a new key and a certificate for a server that is reached by these names and addresses only.

    Args:
        authority: signs it.
        hosts: names such as fl.example.org, or IP addresses, from `config.split_address`; at least one.
        days: from now; not longer than the authority itself is valid.
    """
    key, signer, until = generate_private_key(SECP256R1()), authority.certificate, _until(days)
    if until > signer.not_valid_after_utc:
        most = (signer.not_valid_after_utc - _now()).days
        raise InputError(f"--days {days}: longer than its authority is valid; choose at most {most}")
    names = x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys(hosts)])
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(_named(hosts[0]), signer.subject, key, until)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    return Certified(builder.sign(authority.key, SHA256()), key)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCKS_DIFFER)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:LONGEST_NAME])])


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in _USES})


def _until(days: int) -> datetime.datetime:
    if not 1 <= days <= AUTHORITY_DAYS:
        raise InputError(f"--days {days}: choose 1 to {AUTHORITY_DAYS}")
    return _now() + datetime.timedelta(days=days)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)
