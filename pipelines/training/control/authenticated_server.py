"""The servers of a run: authentication, its limits, and TLS if the cluster encrypts.

Strangers may reach a server's address. A connection is unauthenticated until it has sent the run's
token. A server holds few of these, for a few seconds each. If the cluster encrypts, a connection
first makes its TLS handshake, in the same seconds and on its own thread.

For TLS a server makes a key and a self-signed certificate for one run. Clients get the
certificate's SHA-256 in the same way as the token, and compare it before they send the token or
anything else. The key never leaves its process.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import socketserver
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import PipelineError

if TYPE_CHECKING:
    from typing_extensions import Buffer


RECORD_BYTES = 1 << 14
"""The largest content of a TLS record."""
PIECE_BYTES = 1 << 18
"""Bytes to encrypt or receive at once: they stay in the processor's cache."""


class TlsSocket(socket.socket):
    """Replaces a TCP socket, once :meth:`shake_hands` has returned.

    One of a connection's threads may wait for data while others send. OpenSSL's objects do not
    allow that (`man 7 openssl-threads`). ``ssl.SSLSocket`` calls them without a lock, or from
    Python 3.13 on with a lock even during waits. So the bytes pass through memory here. A thread
    holds a lock to encrypt or decrypt them, never during a wait.

    All options of the socket, its number, ``poll`` and ``shutdown`` belong to the TCP connection.
    Like a plain socket it allows one receiving thread, and any number of senders. It does not
    announce its end: messages contain their lengths.

    Args:
        plain: A connected socket; this one takes over its file descriptor.
        context: The settings of TLS.
        server_side: Whether this end has the certificate.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        seconds = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(seconds)
        self._arrived, self._sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        # `Any`: its stubs name bytearrays only, but it reads into and writes from any buffer.
        self._session: Any = context.wrap_bio(self._arrived, self._sealed, server_side=server_side)
        self._in_session = threading.Lock()
        # Senders hold it even while they wait for the network, so that records keep their order.
        self._sending = threading.Lock()
        self._unsent = b""

    def shake_hands(self) -> None:
        """Agree with the other end on keys, before anything else is sent or received.

        Raises:
            ConnectionError: The other end does not speak TLS, or hung up.
            TimeoutError: It is silent for longer than this socket waits.
        """
        while not self._has_agreed():
            arrived = super().recv(PIECE_BYTES)
            if not arrived:
                raise ConnectionError("the connection ended before it was encrypted")
            self._arrived.write(arrived)

    def certificate(self) -> bytes:
        """Return the other end's certificate, in DER; for clients after their handshake."""
        certificate: bytes = self._session.getpeercert(binary_form=True)
        return certificate

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive like a plain socket."""
        received = bytearray(bufsize)
        count = self.recv_into(received, 0, flags)
        return bytes(memoryview(received)[:count])

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive like a plain socket; the flags apply if no data is buffered.

        Raises:
            ConnectionError: The data was changed on its way.
        """
        memory = memoryview(buffer).cast("B")[: nbytes or None]
        while (count := self._opened(memory)) is None:
            arrived = super().recv(PIECE_BYTES, flags)
            if not arrived:
                return 0
            with self._in_session:
                self._arrived.write(arrived)
        return count

    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        """Send all data like a plain socket."""
        memory = memoryview(data)
        if not memory.nbytes:
            return
        memory = memory.cast("B")
        with self._sending:
            for start in range(0, len(memory), PIECE_BYTES):
                self._seal(memory[start : start + PIECE_BYTES])
                unsent, self._unsent = self._unsent, b""
                super().sendall(unsent, flags)

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Send all of the data, or with ``MSG_DONTWAIT`` all or nothing.

        If the system takes only a part, the rest goes with the next message.

        Raises:
            BlockingIOError: Nothing can be sent without waiting.
        """
        if not flags & socket.MSG_DONTWAIT:
            self.sendall(data, flags)
        elif self._sending.acquire(blocking=False):
            try:
                self._send_unsent()
                if self._unsent:
                    raise BlockingIOError("an earlier message is still on its way")
                self._seal(memoryview(data))
                self._send_unsent()
            finally:
                self._sending.release()
        else:
            raise BlockingIOError("another thread is sending")
        return memoryview(data).nbytes

    def _has_agreed(self) -> bool:
        """Advance the handshake with the received data; return whether it is done."""
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            is_done = False
        except ssl.SSLError as error:
            raise ConnectionError(f"the connection could not be encrypted ({error})") from error
        else:
            is_done = True
        super().sendall(self._sealed.read())
        return is_done

    def _opened(self, memory: memoryview) -> int | None:
        """Decrypt received data; return None without a whole record, 0 at the end."""
        filled = 0
        with self._in_session:
            try:
                while filled < len(memory):
                    free = memory[filled : filled + RECORD_BYTES]
                    count = self._session.read(len(free), free)
                    if not count:
                        break
                    filled += count
            except ssl.SSLWantReadError:
                return filled or None
            except ssl.SSLError as error:
                raise ConnectionError(f"the encrypted connection broke ({error})") from error
        return filled

    def _seal(self, memory: memoryview) -> None:
        """Encrypt data behind the unsent bytes."""
        with self._in_session:
            self._session.write(memory)
            self._unsent += self._sealed.read()

    def _send_unsent(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                sent = super().send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]


_VALID = timedelta(days=3650)
"""Nobody checks the dates: clocks of hosts differ, and clients know one certificate only."""


@dataclass(frozen=True)
class Identity:
    """A server's key and certificate; impossible to pickle, so no key travels.

    `context` is TLS with both; `fingerprint` is the certificate's SHA-256, in hexadecimal digits.
    """

    context: ssl.SSLContext
    fingerprint: str

    def guard(self, accepted: socket.socket) -> TlsSocket:
        """Wrap an accepted connection; its thread makes the handshake first."""
        return TlsSocket(accepted, self.context, server_side=True)


def make_identity() -> Identity:
    """Return a new identity, for the servers of this process and of one run."""
    # Imported only here, since few runs encrypt.
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
    # A client connects once, so it has no use for session tickets.
    context.num_tickets = 0
    # Python loads keys only from files. This one is readable by this user, and useless without the
    # password in memory.
    with tempfile.NamedTemporaryFile(prefix="sentence-pipelines-") as file:
        Path(file.name).write_bytes(written)
        context.load_cert_chain(file.name, password=password)
    return Identity(context, certificate.fingerprint(hashes.SHA256()).hex())


def connect(
    address: tuple[str, int], seconds: float, fingerprint: str | None = None
) -> socket.socket:
    """Return a connection to a server of the run.

    Args:
        seconds: Limit of connecting, and of each later wait on the connection.
        fingerprint: Of the server's certificate; None gives a plain connection, for clusters
            without encryption.

    Raises:
        OSError: The server is unreachable, or does not encrypt.
        PipelineError: Another process answers there. It has received nothing.
    """
    plain = socket.create_connection(address, timeout=seconds)
    if fingerprint is None:
        return plain
    context = _only_newest(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    # No authority has signed the certificate, and addresses are not names: the fingerprint decides.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = TlsSocket(plain, context, server_side=False)
    with ExitStack() as on_error:
        on_error.callback(connection.close)
        connection.shake_hands()
        if hashlib.sha256(connection.certificate()).hexdigest() != fingerprint:
            host, port = address
            raise PipelineError(
                f"the server at {host}:{port} does not belong to this run, because it has another"
                " certificate"
            )
        on_error.pop_all()
    return connection


def _only_newest(context: ssl.SSLContext) -> ssl.SSLContext:
    """Allow TLS 1.3 alone: no renegotiation, and no cipher without forward secrecy."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


logger = logging.getLogger(__name__)

TOKEN_BYTES = 64
HELLO_SECONDS = 10.0
STOP_SECONDS = 10.0
MAX_UNAUTHENTICATED = 64
UNHEARD_SECONDS = 30
"""The longest that one end may be cut off or suspended until the other closes the connection."""

_PROBES = 4


class TokenServer(socketserver.TCPServer):
    """Serves each connection on a thread of its own; a mix-in for servers.

    With too many unauthenticated connections it closes the oldest, not the newest: a worker sends
    its token at once. `identity` encrypts the connections, if given; `settings` are the server's,
    by name.
    """

    daemon_threads = True

    def __init__(
        self, *arguments: Any, token: bytes, identity: Identity | None = None, **settings: Any
    ) -> None:
        self._token = token
        self._identity = identity
        self._guard = threading.Lock()
        self._unauthenticated: dict[socket.socket, float] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._ending = False
        super().__init__(*arguments, **settings)
        self._loop = threading.Thread(target=self._serve, name="token-server", daemon=True)

    def open(self) -> None:
        """Begin to serve."""
        self._loop.start()

    def close(self) -> None:
        """End every connection and every thread; nothing listens when it returns."""
        self._ending = True
        if self._loop.is_alive():
            self.shutdown()
        self.server_close()
        deadline = time.monotonic() + STOP_SECONDS
        with self._guard:
            open_now = dict(self._connections)
        for connection in open_now:
            _shut_down(connection)
        threads = [self._loop, *open_now.values()] if self._loop.ident else []
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in threads):
            # Its connection is closed, and an error here would hide the cause of the run's end.
            logger.warning("a server's thread did not end within %s s", STOP_SECONDS)

    def authenticate(self, connection: socket.socket, token: bytes) -> bool:
        """Return whether the token is the run's; if not, the caller closes the connection."""
        if not hmac.compare_digest(token, self._token):
            return False
        with self._guard:
            self._unauthenticated.pop(connection, None)
        return True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, without reading or sending yet."""
        request, address = super().get_request()
        return request if self._identity is None else self._identity.guard(request), address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a new connection on a thread."""
        thread = threading.Thread(
            target=self._attend,
            args=(request, client_address),
            name="connection",
            daemon=True,
        )
        with self._guard:
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._close_unauthenticated(next(iter(self._unauthenticated)))
            self._unauthenticated[request] = time.monotonic()
            self._connections[request] = thread
            # Under the guard, so that `close` never waits for a thread without a start.
            try:
                thread.start()
            except RuntimeError:
                del self._unauthenticated[request], self._connections[request]
                raise

    def service_actions(self) -> None:
        """Close connections without a token in time; the server's loop calls it."""
        oldest = time.monotonic() - HELLO_SECONDS
        with self._guard:
            for connection, came in list(self._unauthenticated.items()):
                if came < oldest:
                    self._close_unauthenticated(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the final error of a connection."""
        logger.debug("a connection from %s broke", client_address, exc_info=True)

    def _serve(self) -> None:
        self.serve_forever(poll_interval=0.1)

    def _attend(self, request: socket.socket, client_address: Any) -> None:
        try:
            if not self._ending:
                if isinstance(request, TlsSocket):
                    # One deadline covers handshake and token: the server's loop checks it.
                    request.shake_hands()
                self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - as socketserver does: it ends this connection alone
            self.handle_error(request, client_address)
        finally:
            with self._guard:
                self._unauthenticated.pop(request, None)
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def _close_unauthenticated(self, connection: socket.socket) -> None:
        del self._unauthenticated[connection]
        _shut_down(connection)


class SocketTokenServer(TokenServer):
    """Serves connections by `attend`: it authenticates each and returns at its end.

    Port 0 is the system's choice; `identity` encrypts the connections, if given.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        attend: Callable[[socket.socket], None],
        *,
        token: str,
        identity: Identity | None = None,
    ) -> None:
        self.attend = attend
        super().__init__(address, _Connection, token=token.encode(), identity=identity)


class _Connection(socketserver.BaseRequestHandler):
    server: SocketTokenServer

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        detect_cut_connection(self.request)
        self.server.attend(self.request)


def detect_cut_connection(connection: socket.socket) -> None:
    """Have the system end a connection to a cut-off host, idle or not.

    By default it first probes after two hours, and resends unacknowledged data for a quarter of an
    hour.
    """
    pause = UNHEARD_SECONDS // (_PROBES + 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, pause),
        (socket.TCP_KEEPINTVL, pause),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, 1000 * UNHEARD_SECONDS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _shut_down(connection: socket.socket) -> None:
    """Wake a connection's reading thread: it reads the end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
