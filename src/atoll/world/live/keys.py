"""Keys decide which nodes may take part in a run, and identify each node.

A run has a secret of 32 bytes, which its invitation carries.  Every node derives the same certificate authority from
the secret, and signs a certificate for its own key pair with it.  Both sides of every connection (TLS 1.3) accept only
certificates of this authority.  A node's identity is its key, not its address.
"""

import base64
import binascii
import datetime as dt
import hashlib
import json
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from atoll.errors import FrameError, InvitationError

__all__ = ["Address", "Identity", "Invitation", "id_of_certificate", "parse_address"]

Address = tuple[str, int]
SECRET_BYTES = 32
_PREFIX = "atoll1-"
# Certificates are for one run and must work whatever a machine's clock says.
_ALWAYS = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2999, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Invitation:
    """All that a machine needs to join: the run's secret, and the addresses of some of its nodes."""

    secret: bytes
    addresses: tuple[Address, ...]

    @classmethod
    def new(cls, addresses: tuple[Address, ...]) -> "Invitation":
        return cls(os.urandom(SECRET_BYTES), addresses)

    def __str__(self) -> str:
        content = json.dumps({"key": self.secret.hex(), "at": [list(each) for each in self.addresses]})
        return _PREFIX + base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Invitation":
        """Reads the output of `str`."""
        text = "".join(text.split())  # a mail program may have inserted line breaks
        if not text.startswith(_PREFIX):
            raise InvitationError(f"an invitation begins with {_PREFIX!r}, and this with {text[:8]!r}")
        try:
            coded = text.removeprefix(_PREFIX)
            found = json.loads(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
            secret = bytes.fromhex(found["key"])
            addresses = tuple((str(host), int(port)) for host, port in found["at"])
        except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InvitationError("this invitation is not whole: copy all of it") from None
        if len(secret) != SECRET_BYTES:
            raise InvitationError("this invitation is not whole: copy all of it")
        return cls(secret, addresses)

    @property
    def run_id(self) -> str:
        """Identifies the run without revealing its secret."""
        return hashlib.blake2b(self.secret, digest_size=8, person=b"atoll run").hexdigest()


class Identity:
    """A node's key, and the certificate that it shows to others."""

    def __init__(self, secret: bytes, key_file: Path | None = None) -> None:
        """Loads the key from a file.  If there is no key yet, creates one, and saves it if a file is named."""
        self._key = _load_or_make(key_file)
        self.id = _id_of(self._key.public_key())
        authority = Ed25519PrivateKey.from_private_bytes(
            HKDF(hashes.SHA256(), 32, salt=None, info=b"atoll authority").derive(secret)
        )
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "atoll")])
        self._root = _certificate(issuer, issuer, authority.public_key(), authority, serial=1)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.id)])
        self._own = _certificate(subject, issuer, self._key.public_key(), authority, serial=x509.random_serial_number())

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Returns a TLS context that accepts only nodes of this run."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a node's identity is its key, not its address
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self._root.decode())
        if server:
            context.num_tickets = 0  # sessions are not resumed
        private = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # only its owner can read it
            file.write(private + self._own)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def _load_or_make(path: Path | None) -> Ed25519PrivateKey:
    if path is None:
        return Ed25519PrivateKey.generate()
    try:
        kept = path.read_bytes() if path.exists() else b""
        if kept:
            return Ed25519PrivateKey.from_private_bytes(kept)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InvitationError(f"{path}: is not a node's key ({error}); remove it to make a new one") from None
    key = Ed25519PrivateKey.generate()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:  # the same file: it is locked
            file.write(key.private_bytes_raw())
    except OSError as error:
        raise InvitationError(f"{path}: the node's key cannot be kept ({error.strerror or error})") from None
    return key


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PublicKey, authority: Ed25519PrivateKey, serial: int
) -> bytes:
    """Returns a certificate as PEM."""
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=serial,
        not_valid_before=_ALWAYS[0],
        not_valid_after=_ALWAYS[1],
    )
    constraints = x509.BasicConstraints(ca=subject == issuer, path_length=None)
    made = builder.add_extension(constraints, critical=True).sign(authority, None)
    return made.public_bytes(Encoding.PEM)


def _id_of(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def id_of_certificate(der: bytes) -> str:
    """Returns the identity of the certificate's key."""
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FrameError(f"a certificate that cannot be read ({error})") from None
    if not isinstance(key, Ed25519PublicKey):
        raise FrameError("a certificate that Atoll did not make")
    return _id_of(key)


def parse_address(text: str, option: str) -> Address:
    """Reads an address that a user wrote."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise InvitationError(f"{option}: expected HOST:PORT, not {text!r}")
    try:
        plain = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        raise InvitationError(f"{option}: {host!r} is not a host's name ({error})") from None
    return plain.strip("[]"), int(port)
