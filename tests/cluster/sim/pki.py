"""Certificates of one throw-away control plane: a new authority each time, keys readable by the
owner only.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_FOR = datetime.timedelta(days=1)
LOCAL = "127.0.0.1"
SERVICE_IP = "10.0.0.1"
DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


class Authority:
    """Issues `<folder>/<name>.crt` and `.key`; `ca.crt` is what everybody trusts."""

    def __init__(self, folder: Path, address: str = LOCAL) -> None:
        """`address` is where its servers are reached besides this host's own loopback."""
        self.folder = folder
        self._addresses = dict.fromkeys((LOCAL, SERVICE_IP, address))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("holdfast-test-ca", "")
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write_certificate("ca", certificate)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def issue(self, name: str, *, common_name: str = "", organization: str = "") -> None:
        """Issues a certificate for servers on this host and for a client: user `common_name` of
        group `organization`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = []
        for ip in self._addresses:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(ip)))
        builder = self._builder(
            _name(common_name or name, organization), key.public_key()
        ).add_extension(
            x509.SubjectAlternativeName([*alternatives, *(x509.DNSName(n) for n in DNS_NAMES)]),
            critical=False,
        )
        self._write_certificate(name, builder)
        self._write_key(name, key)

    def issue_signing_key(self, name: str) -> None:
        """Writes a key for service account tokens; the API server reads no EC key as PKCS8."""
        self._write_key(name, ec.generate_private_key(ec.SECP256R1()))

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + VALID_FOR)
        )

    def _write_certificate(self, name: str, builder: x509.CertificateBuilder) -> None:
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate(name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        self.key(name).touch(mode=0o600)
        self.key(name).write_bytes(pem)


def _name(common_name: str, organization: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)
