"""Spark's own spark-submit makes the pod that the page on clusters promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_clouds import ApiServer
from local_servers import serving

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240
# The driver's pod stays what it is asked to be: nobody starts it.
DO_NOT_WAIT = "--conf spark.kubernetes.submission.waitAppCompletion=false"


@pytest.fixture(scope="module")
def page() -> str:
    _, _, section = (ROOT / "docs/guides/cluster.md").read_text().partition("\n## Kubernetes\n")
    return section.partition("\n## ")[0]


@pytest.fixture(scope="module")
def driver(page, tmp_path_factory) -> dict[str, Any]:
    """The driver's pod, submitted by the command and the template of the page."""
    folder = tmp_path_factory.mktemp("submitted")
    (template,) = re.findall(r"```yaml\n(# pod\.yaml.*?)```", page, re.DOTALL)
    (folder / "pod.yaml").write_text(template)
    pattern = r"^    VOLUME=.*?^      local:///\S+ .*?$"
    (command,) = re.findall(pattern, page, re.MULTILINE | re.DOTALL)
    taken: list[dict[str, Any]] = []
    with serving(ApiServer, taken=taken) as place:
        address = f"http://127.0.0.1:{place['port']}"
        command = command.replace("https://APISERVER:6443", address)
        command = command.replace("spark-submit", f"spark-submit {DO_NOT_WAIT}", 1)
        subprocess.run(
            ["bash", "-euc", command],
            cwd=folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
    (pod,) = [one for one in taken if one["kind"] == "Pod"]
    return pod


@pytest.mark.slow
def test_the_driver_has_its_account_its_user_and_the_volume(driver):
    spec = driver["spec"]
    (container,) = spec["containers"]
    assert driver["path"] == "/api/v1/namespaces/encoders/pods"
    assert spec["serviceAccountName"] == "spark"
    assert spec["securityContext"] == {
        "runAsUser": 185,
        "fsGroup": 185,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    assert container["resources"]["limits"]["memory"] == "4096Mi"
    assert container["args"][-3:] == ["local:///lake/jobs/train.py", "--config", "/lake/job.yaml"]
    assert "/lake" in {mount["mountPath"] for mount in container["volumeMounts"]}
    claims = [volume.get("persistentVolumeClaim") for volume in spec["volumes"]]
    assert {"claimName": "lake", "readOnly": False} in claims


@pytest.mark.slow
def test_the_image_has_the_locked_version(driver):
    lock = (ROOT / "requirements.lock").read_text()
    (locked,) = re.findall(r"^pyspark==(\S+)", lock, re.MULTILINE)
    assert driver["spec"]["containers"][0]["image"].endswith(f"spark:{locked}")


def test_the_account_may_make_pods_where_the_driver_is(page):
    (text,) = re.findall(r"```yaml\n(# encoders\.yaml.*?)```", page, re.DOTALL)
    objects = {one["kind"]: one for one in yaml.safe_load_all(text)}
    named = [one["metadata"].get("namespace") for one in objects.values()]
    assert set(named) == {None, "encoders"}
    (rule,) = objects["Role"]["rules"]
    assert {"pods", "services", "configmaps", "persistentvolumeclaims"} == set(rule["resources"])
    assert {"create", "get", "list", "watch", "delete"} <= set(rule["verbs"])
    (subject,) = objects["RoleBinding"]["subjects"]
    assert subject["name"] == objects["ServiceAccount"]["metadata"]["name"] == "spark"
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    assert objects["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
