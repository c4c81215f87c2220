"""The cluster's two certificate authorities and every key pair that they sign; new for each fresh cluster."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.layout import API_SERVICE_ADDRESS, NODE_ADDRESS, NODE_NAME

VALIDITY = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)

API_SERVER_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    NODE_ADDRESS,
    "127.0.0.1",
    API_SERVICE_ADDRESS,
)


@dataclass(frozen=True)
class Request:
    """One certificate to sign: whose it is, and where it serves (no names: a client certificate only)."""

    file: str
    common_name: str
    organisation: str = ""
    serves_as: tuple[str, ...] = ()


CLUSTER_REQUESTS = (
    Request("admin", "embedserve-admin", "system:masters"),
    Request("apiserver", "kube-apiserver", serves_as=API_SERVER_NAMES),
    Request("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Request("controller-manager", "system:kube-controller-manager"),
    Request("scheduler", "system:kube-scheduler"),
    Request("proxy", "system:kube-proxy"),
    Request("kubelet", f"system:node:{NODE_NAME}", "system:nodes", serves_as=(NODE_NAME, NODE_ADDRESS)),
)

FRONT_PROXY_REQUESTS = (Request("front-proxy-client", "front-proxy-client"),)


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def write_certificates(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for authority_file, common_name, requests in (
        ("ca", "embedserve-cluster", CLUSTER_REQUESTS),
        ("front-proxy-ca", "embedserve-front-proxy", FRONT_PROXY_REQUESTS),
    ):
        authority = _new_authority(common_name)
        _write_pair(folder, authority_file, authority.key, authority.certificate)
        for request in requests:
            key = ec.generate_private_key(ec.SECP256R1())
            _write_pair(folder, request.file, key, _sign(authority, request, key.public_key()))
    _write_service_account_key(folder)


def _new_authority(common_name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def _sign(authority: Authority, request: Request, public_key: ec.EllipticCurvePublicKey) -> x509.Certificate:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, request.common_name)]
    if request.organisation:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, request.organisation))
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if request.serves_as:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(authority.certificate.subject, x509.Name(attributes), public_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    if request.serves_as:
        names = x509.SubjectAlternativeName([_general_name(name) for name in request.serves_as])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    issuer: x509.Name, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_pair(
    folder: Path, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    _write_private(folder / f"{file}.key", key)
    (folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_service_account_key(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_private(folder / "service-account.key", key)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "service-account.pub").write_bytes(public)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
