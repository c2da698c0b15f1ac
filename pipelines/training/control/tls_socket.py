"""A TCP connection whose bytes are encrypted by TLS, for several threads.

One of a connection's threads may wait for what arrives while others send. OpenSSL's objects are not
made for that (`man 7 openssl-threads`), and ``ssl.SSLSocket`` calls them without a lock, or from
Python 3.13 on with one that a thread which waits for data keeps. So the bytes pass through memory
here: a lock is held while they are encrypted or decrypted, and never while a thread waits.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

RECORD_BYTES = 1 << 14
"""The most that one record of TLS holds."""
PIECE_BYTES = 1 << 18
"""What is encrypted, or received, at once: it stays in the processor's cache."""


class TlsSocket(socket.socket):
    """Takes the place of a TCP socket, once :meth:`shake_hands` has returned.

    All options of the socket, its number, ``poll`` and ``shutdown`` are those of the TCP
    connection. Like a plain one it has one thread that receives, and any number that send. Its end
    is not announced: messages tell their lengths themselves.

    Args:
        plain: A connected socket, which is empty afterwards.
        context: The settings of TLS.
        server_side: Whether this end has the certificate.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        seconds = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(seconds)
        self._arrived, self._sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        # Its types know bytearrays alone; it reads into any buffer, and writes from any.
        self._session: Any = context.wrap_bio(self._arrived, self._sealed, server_side=server_side)
        self._in_session = threading.Lock()
        # Of those who send: held while they wait for the network, so that records keep their order.
        self._sending = threading.Lock()
        self._unsent = b""

    def shake_hands(self) -> None:
        """Agrees with the other end on keys; nothing else may be sent or received before.

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
        """That of the other end, in DER; to be called by a client that has shaken hands."""
        certificate: bytes = self._session.getpeercert(binary_form=True)
        return certificate

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As a plain socket's."""
        received = bytearray(bufsize)
        count = self.recv_into(received, 0, flags)
        return bytes(memoryview(received)[:count])

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        """As a plain socket's; the flags are for what is received if nothing is there already.

        Raises:
            ConnectionError: Somebody has changed what was sent.
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
        """As a plain socket's."""
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
        """Sends all of the data, or with ``MSG_DONTWAIT`` all or nothing.

        What the system then takes a part of goes on its way with the next message.

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
        """Takes the handshake as far as what has arrived allows; returns whether it is done."""
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
        """Decrypts what has arrived; none if that is no whole record, 0 if it is the end."""
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
        """Encrypts behind what is still to be sent."""
        with self._in_session:
            self._session.write(memory)
            self._unsent += self._sealed.read()

    def _send_unsent(self) -> None:
        """Sends what the system takes without waiting."""
        with suppress(BlockingIOError):
            while self._unsent:
                sent = super().send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]
