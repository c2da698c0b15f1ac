"""EMR and Kubernetes on this machine, as far as Airflow talks to them: they run nothing.

Each keeps what it is sent, and lets every job end as it is told to: by an exit code, and by the
outcome that a real job would have written into the file that its arguments name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

Ends = dict[str, list[dict[str, Any]]]
"""By stage, what becomes of its tries; of those that are not there, exit code 0."""


def stage_of(arguments: Sequence[str]) -> str:
    """The stage whose job has such arguments, by its outcome's name."""
    return Path(option(arguments, "--outcome")).name.partition("-")[0]


def option(arguments: Sequence[str], name: str) -> str:
    """What follows an option in a command."""
    return arguments[arguments.index(name) + 1]


def ended(ends: Ends, arguments: Sequence[str]) -> int:
    """Ends a try of a job, with its outcome if there is to be one; gives the exit code."""
    tries = ends.get(stage_of(arguments), [])
    end = {"exit_code": 0, "error": None, "results": {}} | (tries.pop(0) if tries else {})
    if not end.pop("lost", False):
        path = Path(option(arguments, "--outcome"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(end))
    return int(end["exit_code"])


class JsonServer(BaseHTTPRequestHandler):
    """Takes and answers JSON."""

    ends: Ends
    protocol_version = "HTTP/1.1"

    def content(self) -> Any:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(text) if text else None

    def answer(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
        content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""


class Emr(JsonServer):
    """The API of EMR on EC2: steps of a cluster."""

    submitted: list[dict[str, Any]]
    states: dict[str, str]

    def do_POST(self) -> None:
        _, _, action = self.headers["X-Amz-Target"].partition(".")
        answers = {
            "AddJobFlowSteps": self.add_steps,
            "DescribeStep": self.describe_step,
            "DescribeCluster": lambda asked: {"Cluster": {"Id": asked["ClusterId"]}},
        }
        self.answer(answers[action](self.content()), kind="application/x-amz-json-1.1")

    def add_steps(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.submitted.append(asked)
        (step,) = asked["Steps"]
        name = f"s-{len(self.submitted)}"
        code = ended(self.ends, step["HadoopJarStep"]["Args"])
        self.states[name] = "FAILED" if code else "COMPLETED"
        return {"StepIds": [name]}

    def describe_step(self, asked: dict[str, Any]) -> dict[str, Any]:
        # EMR says of a job that has failed by itself: an unknown error.
        failure = {"Reason": "Unknown Error.", "LogFile": "s3://logs/stderr.gz"}
        state = self.states[asked["StepId"]]
        return {"Step": {"Status": {"State": state, "FailureDetails": failure}}}


class EmrServerless(JsonServer):
    """The API of EMR Serverless: job runs of an application that has started."""

    submitted: list[dict[str, Any]]
    codes: dict[str, int]

    def do_POST(self) -> None:
        self.submitted.append({"path": self.path, **self.content()})
        name = f"r-{len(self.submitted)}"
        spark = self.submitted[-1]["jobDriver"]["sparkSubmit"]
        self.codes[name] = ended(self.ends, spark["entryPointArguments"])
        application = self.path.split("/")[2]
        self.answer({"applicationId": application, "jobRunId": name, "arn": f"arn:{name}"})

    def do_GET(self) -> None:
        *_, kind, name = urlparse(self.path).path.split("/")
        if kind == "applications":
            self.answer({"application": {"applicationId": name, "state": "STARTED"}})
            return
        code = self.codes[name]
        state = "FAILED" if code else "SUCCESS"
        details = f"Job failed, please check complete logs. ExitCode: {code}." if code else ""
        self.answer({"jobRun": {"jobRunId": name, "state": state, "stateDetails": details}})


class Kubernetes(JsonServer):
    """The API of Kubernetes with the Spark operator: applications, and pods of their drivers."""

    submitted: list[dict[str, Any]]
    deleted: list[str]
    codes: dict[str, int]

    def do_POST(self) -> None:
        body = self.content()
        self.submitted.append({"path": self.path, **body})
        self.codes[body["metadata"]["name"]] = ended(self.ends, body["spec"]["arguments"])
        self.answer(body, 201)

    def do_GET(self) -> None:
        path = urlparse(self.path).path.removesuffix("/")
        *_, kind, name = path.removesuffix("/status").removesuffix("/log").split("/")
        if path.endswith("/pods") or path.endswith("/events"):
            self.answer({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})
        elif kind == "sparkapplications":
            self.answer({"status": {"applicationState": {"state": "RUNNING"}}})
        elif path.endswith("/log"):
            self.answer("2026-01-01T00:00:00Z a line of the driver\n", kind="text/plain")
        else:
            self.answer(pod(name, path.split("/")[4], self.codes[name.removesuffix("-driver")]))

    def do_PATCH(self) -> None:
        self.content()
        name = urlparse(self.path).path.split("/")[-1]
        self.answer(pod(name, "default", self.codes[name.removesuffix("-driver")]))

    def do_DELETE(self) -> None:
        self.content()
        self.deleted.append(urlparse(self.path).path.split("/")[-1])
        self.answer({"kind": "Status", "status": "Success"})


class ApiServer(JsonServer):
    """The API of Kubernetes without anything behind it: takes every object, and has none."""

    taken: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.content()
        self.taken.append({"path": self.path, **body})
        body["metadata"] |= {"uid": f"u-{len(self.taken)}", "resourceVersion": "1"}
        self.answer(body, 201)

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        self.answer({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}, 404)


def pod(name: str, namespace: str, code: int) -> dict[str, Any]:
    """A driver's pod that has ended."""
    reason = "Error" if code else "Completed"
    container = {
        "name": "spark-kubernetes-driver",
        "image": "spark",
        "imageID": "spark",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}},
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "labels": {"spark-role": "driver"}},
        "spec": {"containers": [{"name": "spark-kubernetes-driver", "image": "spark"}]},
        "status": {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [container],
        },
    }


def kube_config(place: Mapping[str, Any]) -> str:
    """A configuration, in JSON, of a client of the server at a place."""
    address = f"http://{place['host']}:{place['port']}"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": address}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        }
    )
