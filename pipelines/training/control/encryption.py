"""How the servers of a run are encrypted where the cluster is, and how clients know them.

A server makes a key and a certificate for one run, which nobody has signed: whoever is to connect
is told the SHA-256 of the certificate on the way by which the token comes. A client compares it
before it sends anything, the token least of all. The key never leaves its process.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import ssl
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.errors import PipelineError
from pipelines.training.control.tls_socket import TlsSocket

_VALID = timedelta(days=3650)
"""Nobody looks at it: clocks of hosts differ, and clients know one certificate only."""


@dataclass(frozen=True)
class Identity:
    """What a server proves itself with; cannot be pickled, so that no key travels.

    Attributes:
        context: TLS with its key and certificate.
        fingerprint: SHA-256 of the certificate, in hexadecimal digits.
    """

    context: ssl.SSLContext
    fingerprint: str

    def guard(self, accepted: socket.socket) -> TlsSocket:
        """A connection that was accepted; whoever serves it shakes hands first."""
        return TlsSocket(accepted, self.context, server_side=True)


def make_identity() -> Identity:
    """A new identity, for the servers of this process and of one run."""
    # Imported here, since few runs need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sentence-pipelines")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_bytes(32)
    written = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    context = _only_newest(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    # A client connects once, so it has no use for a ticket to come again.
    context.num_tickets = 0
    # Python takes keys from files alone: it is one that this user can read, and no one without the
    # password, which is in memory.
    with tempfile.NamedTemporaryFile(prefix="sentence-pipelines-") as file:
        Path(file.name).write_bytes(written)
        context.load_cert_chain(file.name, password=password)
    return Identity(context, certificate.fingerprint(hashes.SHA256()).hex())


def connect(
    address: tuple[str, int], seconds: float, fingerprint: str | None = None
) -> socket.socket:
    """A connection to a server of the run.

    Args:
        address: Host and port.
        seconds: The longest that it may take; later waits on the connection have the same limit.
        fingerprint: Of the server's certificate; none where the cluster does not encrypt, and the
            connection is a plain one.

    Raises:
        OSError: The server cannot be reached, or does not encrypt.
        PipelineError: Somebody else is there. Nothing was sent to it.
    """
    plain = socket.create_connection(address, timeout=seconds)
    if fingerprint is None:
        return plain
    context = _only_newest(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    # Nobody has signed the certificate, and addresses are no names: it is compared below.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = TlsSocket(plain, context, server_side=False)
    with ExitStack() as on_error:
        on_error.callback(connection.close)
        connection.shake_hands()
        if hashlib.sha256(connection.certificate()).hexdigest() != fingerprint:
            host, port = address
            raise PipelineError(
                f"what answers at {host}:{port} is no server of this run: its certificate is"
                " another one"
            )
        on_error.pop_all()
    return connection


def _only_newest(context: ssl.SSLContext) -> ssl.SSLContext:
    """TLS 1.3: it has no renegotiation, and no cipher without forward secrecy."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
