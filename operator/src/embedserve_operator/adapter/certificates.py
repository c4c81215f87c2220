"""Makes serving certificates. Each replica makes its own key, which never leaves the process, and
a self-signed certificate of it.

The certificates are published, and the API server is told to trust exactly these.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(minutes=5)
_MAX_COMMON_NAME_LENGTH = 64
_MAX_ENTRIES = 128


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A private key with its certificate."""

    certificate: str
    """The certificate as PEM."""
    key: bytes
    """The private key as PEM; it is secret."""
    renew_at: datetime
    """The time at which another certificate should take over."""

    def __repr__(self) -> str:
        return f"ServingCertificate(renew_at={self.renew_at})"


def create_serving_certificate(server_name: str, now: datetime, life: timedelta) -> ServingCertificate:
    """Return a new key with its certificate, for a server of that name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server_name[:_MAX_COMMON_NAME_LENGTH])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name)]), critical=False)
        # The certificate signs only itself.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ServingCertificate(
        certificate=_format_pem(certificate),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        renew_at=now + life * 2 / 3,
    )


def build_server_context(identity: ServingCertificate, client_authority: str) -> ssl.SSLContext:
    """Return a TLS context that asks every client for a certificate of that authority (PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=client_authority)
    load_certificate(context, identity)
    return context


def load_certificate(context: ssl.SSLContext, identity: ServingCertificate) -> None:
    """Serve with another key and certificate from the next handshake on."""
    # The ssl module reads keys only from files.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.pem"
        file.touch(mode=0o600)
        file.write_bytes(identity.key + identity.certificate.encode())
        context.load_cert_chain(file)


def find_valid_certificates(texts: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Return the certificates in PEM texts that have not expired, each one once, in one spelling and order.

    Texts that hold no certificate are skipped.
    """
    valid = set()
    for text in texts:
        try:
            certificates = x509.load_pem_x509_certificates(text.encode())
        except ValueError:
            continue
        valid |= {
            _format_pem(certificate) for certificate in certificates if certificate.not_valid_after_utc > now
        }
    return tuple(sorted(valid))


def select_freshest(entries: Mapping[str, object], now: datetime) -> dict[str, str]:
    """Return the published entries that hold a certificate which has not expired; the latest ones where there
    are too many.

    An entry outlives its process, since nobody says when a pod is gone for good; it goes when it expires.
    """
    ends: dict[str, datetime] = {}
    for name, text in entries.items():
        valid = find_valid_certificates([text], now) if isinstance(text, str) else ()
        if valid:
            certificates = x509.load_pem_x509_certificates("".join(valid).encode())
            ends[name] = max(certificate.not_valid_after_utc for certificate in certificates)
    latest = sorted(ends, key=lambda name: ends[name], reverse=True)[:_MAX_ENTRIES]
    return {name: str(entries[name]) for name in latest}


def _format_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
