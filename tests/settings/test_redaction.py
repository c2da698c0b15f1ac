"""What gives access to something is in no file and on no page that others see."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.cli import main
from pipelines.settings.load import dump, load, parse
from pipelines.settings.redaction import (
    HIDDEN,
    SPARK_PATTERN,
    without_password,
    without_secret_arguments,
    without_secrets,
)
from pipelines.tracking.base import parameters

SECRET_KEYS = [
    *("authenticate.secret", "ssl.keyPassword", "db.pwd", "MY_KEY", "io.encryption.key"),
    *("sql.columnEncryption.encryption.key", "hadoop.fs.s3a.access.key"),
    "hadoop.fs.azure.account.key.store.dfs.core.windows.net",
    *("hadoop.fs.azure.sas.container.store", "hadoop.fs.s3a.session.token"),
    *("executorEnv.ANYTHING", "executorEnv.PATH", "yarn.appMasterEnv.LICENCE"),
    *("kubernetes.driverEnv.LICENCE", "kafka.sasl.jaas.config", "azure.connectionString"),
    *("db.pass", "SMTP_PASS", "ssl.keystorePass", "ldap.pass.1", "my_sas", "db.pw"),
]
SECRET_VALUES = [
    "-Djavax.net.ssl.trustStorePassword={}",
    "jdbc:oracle:thin:scott/{}@host:1521:runs",
    "Server=db;PWD={}",
    "-Ddb.pass={}",
    "https://user:{}@host/path",
    "https://host/path?sig={}",
]
ADDRESSES = [
    "https://{}@host/path",
    "https://user:{}@host:5000/path",
    "https://host/path?token={}",
    "https://host/path#{}",
    "databricks://host;key={}",
    "s3a://id:{}@bucket/path",
]
PLAIN = {
    "executor.memory": "2g",
    "authenticate": "true",
    "network.crypto.enabled": "true",
    "kerberos.keytab": "/etc/me.keytab",
    "hadoop.fs.s3a.endpoint": "https://storage.example.org:9000/",
}
# Of the signs of passwords; long enough not to stand in a setting by chance.
SECRETS = st.text("aZ09+=/%!$&?#@:;-_", min_size=12, max_size=40).map(lambda text: f"{text}Zx7Q")


def shown(config):
    """All that is written of settings for others."""
    return dump(without_secrets(config)) + json.dumps(parameters(config))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    secret=SECRETS,
    key=st.sampled_from(SECRET_KEYS),
    value=st.sampled_from(SECRET_VALUES),
    address=st.sampled_from(ADDRESSES),
)
def test_a_secret_is_never_shown(secret, key, value, address):
    config = parse(
        {
            "spark": {**PLAIN, key: secret, "some.setting": value.format(secret)},
            "tracking": {"trackers": ["mlflow"], "mlflow_uri": address.format(secret)},
            "corpus": {"format": "delta", "inputs": ["a", address.format(secret)]},
        }
    )
    given = [f"spark.{key}={secret}", f"--set=stages.train.spark.{key}={secret}"]
    given += [f"spark={{{key}: {secret}}}", f"spark.some.setting={value.format(secret)}"]
    given += [f"corpus.inputs=[a, {address.format(secret)}]", address.format(secret)]
    text = shown(config) + " ".join(without_secret_arguments(given))
    assert secret not in text
    assert secret[-4:] not in text
    assert without_secrets(config).spark.conf[key] == HIDDEN


def test_what_is_no_secret_is_shown():
    config = parse({"spark": PLAIN, "corpus": {"format": "text", "inputs": ["/data/a@b?.txt"]}})
    assert without_secrets(config) == config
    assert without_secrets(load()) == load()


def test_spark_is_told_to_hide_the_same():
    pattern = re.compile(SPARK_PATTERN)
    assert all(pattern.search(f"spark.{key}") for key in SECRET_KEYS)
    hidden = [value for value in SECRET_VALUES if "sig=" not in value]
    assert all(pattern.search(value.format("x")) for value in hidden)
    assert not any(pattern.search(f"spark.{key}={value}") for key, value in PLAIN.items())
    # In spark-defaults.conf it would begin an escape.
    assert "\\" not in SPARK_PATTERN


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("postgresql://me:sesame@db:5432/runs", "postgresql://db:5432/runs"),
        ("https://host/path?token=a#b", "https://host/path"),
        ("hdfs://host:8020/data/a.parquet", "hdfs://host:8020/data/a.parquet"),
        ("s3a://id:se/c?ret@bucket/a", "s3a://(hidden)"),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
        ("databricks://profile", "databricks://profile"),
        ("at https://a:b@c/d and https://e:f@g/h", "at https://c/d and https://g/h"),
        ("no address: a@b?c", "no address: a@b?c"),
    ],
)
def test_addresses_without_what_gives_access(address, plain):
    assert without_password(address) == plain


def test_what_is_no_secret_of_a_command_line_is_shown():
    given = ["train", "--config", "/a/job.yaml", "--set", "tokens.max_length=64", "a=b c"]
    given += ["--set=corpus.key_column=key", "spark.executor.memory=2g", "stages.train={}"]
    assert without_secret_arguments(given) == [*given[:-1], f"stages.train={HIDDEN}"]


@pytest.mark.parametrize(
    ("argument", "plain"),
    [
        (" spark.conf.spark.my.password=abc", f"spark.conf.spark.my.password={HIDDEN}"),
        ("--set=spark.conf.spark/x.secret=abc", f"--set=spark.conf.spark/x.secret={HIDDEN}"),
        ('"spark.conf.a.token"=abc', f'"spark.conf.a.token"={HIDDEN}'),
        ("spark.conf.a:b.secret=abc", f"spark.conf.a:b.secret={HIDDEN}"),
        ("--output=s3://u:p@h/x?k=1", "--output=s3://h/x"),
        ("s3://u:p@h/k?token=1", "s3://h/k"),
    ],
)
def test_odd_arguments_show_no_secret(argument, plain):
    assert without_secret_arguments([argument]) == [plain]


def test_an_error_shows_no_password(capsys):
    assert main(["train", "--set", "run.folder=s3a://me:sesame@bucket/run"]) == 2
    told = capsys.readouterr().err
    assert "s3a://bucket/run" in told
    assert "sesame" not in told
