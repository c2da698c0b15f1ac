"""Who can connect to a Spark session that is started here, and whether its master answers."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.settings.redaction import is_secret
from pipelines.spark.work_folder import own_work_folder

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOPBACK = "127.0.0.1"
PROBE_SECONDS = 5.0
_LOCAL_ADDRESS = "SPARK_LOCAL_IP"
_AUTHENTICATE = "spark.authenticate"
_SECRET = "spark.authenticate.secret"
_ENCRYPTING = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.enabled",
    "spark.authenticate.enableSaslEncryption",
)
_AT_START = ("spark.master", "spark.driver.", "spark.jars", "spark.submit.")
"""What the JVM itself is started with, which nothing else can hand to it."""


def is_local(conf: Mapping[str, str]) -> bool:
    """Whether all of a session is on this machine: `local[...]` and `local-cluster[...]`."""
    return conf.get("spark.master", "").startswith("local")


def has_workers(conf: Mapping[str, str]) -> bool:
    """Whether a session starts workers of Spark's on this machine: `local-cluster[...]`."""
    return conf.get("spark.master", "").startswith("local-cluster")


def private_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Conf that closes a local session to other users of this machine; empty for another one.

    Its driver listens on loopback, and its processes authenticate with a secret that is made
    for this session alone. What the conf has already is left as it is.

    Args:
        conf: Of the session, by whole keys.
    """
    if not is_local(conf):
        return {}
    private = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if conf.get(_AUTHENTICATE, "true") == "true":
        private |= {_AUTHENTICATE: "true", _SECRET: secrets.token_hex(32)}
    return {key: value for key, value in private.items() if key not in conf}


def encrypting_key(context: SparkContext) -> str | None:
    """The key of the conf that asks for encryption; none where no key does.

    Args:
        context: Of the cluster.
    """
    conf = context.getConf()
    return next((key for key in _ENCRYPTING if str(conf.get(key, "")).lower() == "true"), None)


def start_jvm(conf: Mapping[str, str], log: Path) -> None:
    """Starts the driver's JVM, if this process has none yet.

    That of a local session has its master, workers and executors listen on loopback, which no conf
    says, unless the user's environment names another address. Its workers have a
    folder of their own. Secrets are not among the arguments,
    which everybody on this machine can read: the session hands them to the JVM.

    Args:
        conf: Of the session, by whole keys.
        log: Where it writes what it prints; no line of it is for the user.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._jvm is not None:
        return
    shown = [
        (key, value)
        for key, value in conf.items()
        if key.startswith(_AT_START) or not is_secret(key, value)
    ]
    ours = is_local(conf) and _LOCAL_ADDRESS not in os.environ
    if ours:
        os.environ[_LOCAL_ADDRESS] = LOOPBACK
    work_folder = own_work_folder() if has_workers(conf) else nullcontext()
    try:
        with work_folder, log.open("ab") as printed:
            asked = SparkConf(loadDefaults=False).setAll(shown)
            gateway = launch_gateway(asked, {"stderr": printed})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway, conf=asked)
    finally:
        if ours:
            del os.environ[_LOCAL_ADDRESS]


def check_master(master: str) -> None:
    """Makes sure that a standalone master answers; others are not checked.

    Spark itself tries for minutes, and its session is there meanwhile, without executors.

    Args:
        master: As `spark.master` has it; several addresses of one cluster have commas between them.

    Raises:
        InputError: Nothing does within a few seconds, at none of them.
    """
    if not master.startswith("spark://"):
        return
    problems = []
    for address in master.removeprefix("spark://").split(","):
        found = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d{1,5})", address.strip())
        if found is None:
            raise InputError("spark.master", f"`{master}` is no address", "spark://HOST:7077")
        try:
            with socket.create_connection((found[1], int(found[2])), timeout=PROBE_SECONDS):
                return
        except (OSError, OverflowError) as error:
            problems.append(f"{address}: {error}")
    raise InputError(
        "spark.master",
        f"nothing answers at {master} ({'; '.join(problems)})",
        "start the cluster, or correct the address",
    )
