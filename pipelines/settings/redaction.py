"""Settings without secrets, for others to see.

Only this module says what a secret is. In doubt it hides a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.settings import Config, Settings

HIDDEN = "(hidden)"

# The words of Spark's own pattern, and those of clouds, stores and databases. Java reads them too,
# from a file where a backslash begins an escape.
_WORDS = "|".join(f"(?<![a-z0-9]){word}(?![a-z0-9])" for word in ("sas", "auth", "pw"))
_NAMES = (
    "secret|passw|passphrase|pass(?![a-z])|pwd|token|credential|private|signature|bearer|cookie"
    f"|jaas|key(?!tab)|{_WORDS}|authorization|connection[._-]?string"
)
# Environment variables of executors and drivers, whatever their names.
_VARIABLES = "(?:^|[.])(?:executor|appMaster|driver)Env[.]"
_VALUES = (
    "secret|passw|passphrase|pass[=:]|pwd|token|credential|private|signature|bearer|jaas|jdbc:"
    "|(?<![a-z0-9])sas(?![a-z0-9])|(?:access|account|api|encryption|_)[._-]?key"
)
SPARK_REDACTION = "spark.redaction.regex"
SPARK_PATTERN = f"(?i){_NAMES}|{_VARIABLES}|jdbc:|://[^/@]*:[^/@]*@"
"""The pattern of what Spark hides in its pages and event log, matched with keys and values."""
_SECRET_NAME = re.compile(f"{_NAMES}|{_VARIABLES}", re.IGNORECASE)
_SECRET_VALUE = re.compile(_VALUES, re.IGNORECASE)
_ADDRESS = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)(\S*)", re.IGNORECASE)
_SETTING = re.compile(r"(?P<option>--\w+=)?(?P<key>[^=:?]+)=(?P<value>.*)", re.DOTALL)
# Their values belong to Spark and may hold anything.
_CONF_SECTIONS = ("spark", "stages")
# Parameters begin with one of these; those of databases with a semicolon.
_PARAMETERS = re.compile(r"[?#;]")


def without_secrets(config: Config) -> Config:
    """Return the configuration without secrets.

    Spark settings whose key or value looks like a secret are hidden, as on Spark's own pages, and
    so are all variables of executors. Addresses in any setting lose user, password and parameters.
    """
    sections = {name: _plain(section) for name, section in config if name != "spark"}
    stages = {stage: without_secret_conf(conf) for stage, conf in config.stages}
    sections["stages"] = config.stages.model_copy(update=stages)
    sections["spark"] = config.spark.with_conf(without_secret_conf(config.spark.conf))
    return config.model_copy(update=sections)


def without_secret_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return a Spark conf without secrets."""
    return {
        key: HIDDEN if is_secret(key, value) else without_password(value)
        for key, value in conf.items()
    }


def without_secret_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without secrets; see :func:`without_secrets`."""
    return [_plain_argument(argument) for argument in arguments]


def _plain_argument(argument: str) -> str:
    found = _SETTING.fullmatch(argument)
    if found is None:
        key, is_setting, _ = argument.partition("=")
        hidden = is_setting and _SECRET_NAME.search(key) and not _ADDRESS.search(key)
        return f"{key}={HIDDEN}" if hidden else without_password(argument)
    option, key, value = found["option"] or "", found["key"].strip(), found["value"]
    section = key.partition(".")[0]
    is_plain = section in Config.model_fields and section not in _CONF_SECTIONS
    # The keys within a mapping are not looked at one by one.
    hidden = not is_plain and ("{" in value or is_secret(key, value))
    return f"{option}{key}={HIDDEN if hidden else without_password(value)}"


def without_password(text: str) -> str:
    """Return a text whose addresses have neither user, password nor parameters."""
    return _ADDRESS.sub(_plain_address, text)


def _plain_address(found: re.Match[str]) -> str:
    # Users write unescaped passwords and parameters, with any sign in them.
    place, found_at, host = found[2].rpartition("@")
    if found_at and _PARAMETERS.search(place):
        return f"{found[1]}{HIDDEN}"
    return found[1] + _PARAMETERS.split(host, maxsplit=1)[0]


def is_secret(key: str, value: str) -> bool:
    """Tell whether a Spark setting may give access to something, by its key or its value."""
    if key.endswith("redaction.regex"):
        return False  # It names what is a secret.
    return _SECRET_NAME.search(key) is not None or _SECRET_VALUE.search(value) is not None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Settings):
        return value.model_copy(update={name: _plain(entry) for name, entry in value})
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(entry) for entry in value)
    return value
