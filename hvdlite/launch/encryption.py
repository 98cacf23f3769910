"""TLS between the launcher and agents on other hosts, with a new key for each job.

``openssl`` makes a key and a certificate for the launcher. An agent gets the certificate's SHA-256
with the token, and compares it with the certificate of its connection. The key's file is deleted
when the key is loaded. Importing this module takes 9 ms, and jobs on one host do not need it, so
callers import it inside functions.
"""

import hashlib
import hmac
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple, Optional

_MAKE = [
    *("openssl", "req", "-x509", "-nodes", "-days", "3650", "-subj", "/CN=hvdliterun"),
    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-keyout", "key", "-out", "certificate"),
]


class Key(NamedTuple):
    """The launcher's TLS context, and the fingerprint of its certificate."""

    context: ssl.SSLContext
    fingerprint: str


def new_key() -> Optional[Key]:
    """Make a key; return None if there is no working ``openssl``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    with tempfile.TemporaryDirectory(prefix="hvdlite-") as folder:  # the folder has mode 0700
        try:
            subprocess.run(_MAKE, cwd=folder, check=True, capture_output=True)
            context.load_cert_chain(Path(folder, "certificate"), Path(folder, "key"))
        except (OSError, subprocess.CalledProcessError):
            return None
        text = Path(folder, "certificate").read_text()
    return Key(context, _fingerprint(ssl.PEM_cert_to_DER_cert(text)))


def to_launcher(sock: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    """Wrap an agent's connection.

    :raises OSError: the peer is not this job's launcher.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # the fingerprint is checked instead
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    wrapped = context.wrap_socket(sock)
    if not hmac.compare_digest(_fingerprint(wrapped.getpeercert(True) or b""), fingerprint):
        wrapped.close()
        raise ConnectionRefusedError("the launcher of another job listens at this address")
    return wrapped


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
