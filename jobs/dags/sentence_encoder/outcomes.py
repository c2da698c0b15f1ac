"""What comes of jobs: which are tried again, what Airflow is told of them, and alerts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sentence_encoder.airflow_versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    BaseNotifier,
    ObjectStoragePath,
)
from sentence_encoder.deployment import (
    OUTCOMES,
    deployment,
    outcome_name,
    run_folder,
    skip_unless_wanted,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)

ALERT_SECONDS = 30

XCOM = "outcome"
"""The key under which a task hands on the figures of its job."""

FINAL = {2: "the settings or the input have to be mended", 3: "the quality gate refuses the model"}
"""Exit codes that a retry would not change; see docs/reference/commands.md."""
REFUSED = 3
NOTHING_NEW = 4
KINDS = {**dict.fromkeys(FINAL, AirflowFailException), NOTHING_NEW: AirflowSkipException}
"""What Airflow is told for an exit code; for any other, that the task has failed."""

# As the messages have it of spark-submit's hook (client mode, Kubernetes), of Databricks, of pods
# and applications on Kubernetes, of EMR Serverless, and our own.
_EXIT_CODE = re.compile(
    r"(?:Error code is|[Ee]xit code(?: is)?|SystemExit|ExitCode|'exit_code'):? ([1-9]\d*)"
)
_OUTPUT = "Last spark-submit output"
_ERROR_LINE = re.compile(r"^error: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What a job has written about its end; see `--outcome` in docs/reference/commands.md.

    Attributes:
        exit_code: 0 when done.
        error: Its line, if it failed.
        results: Figures, versions and names.
    """

    exit_code: int
    error: str | None
    results: Mapping[str, Any]


class Job:
    """Before an operator among the bases of a class: its task ends as its job has ended.

    A job that another try would not help fails the task at once, one that found nothing new skips
    it. What the job has found out is handed on as XCom and with the events of the task's assets.
    """

    task_id: str

    # Airflow marks its own call of `execute` by an option.
    def execute(self, context: Context, **marks: Any) -> Any:
        """Runs the operator."""
        skip_unless_wanted(self.task_id)
        return _ended(context, lambda: super(Job, self).execute(context, **marks))  # type: ignore[misc]

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Goes on with the operator after it was deferred."""
        resume = super().resume_execution  # type: ignore[misc]
        return _ended(context, lambda: resume(next_method, next_kwargs, context))


def _ended(context: Context, run: Callable[[], Any]) -> Any:
    task, params = context["ti"], context["params"]
    try:
        returned = run()
    except (AirflowFailException, AirflowSkipException):
        raise
    except Exception as error:
        raise verdict(error, read_outcome(task, params, task.try_number)) from error
    # The operator may have found the job of an earlier try again.
    tries = range(task.try_number, 0, -1)
    outcome = next(filter(None, (read_outcome(task, params, number) for number in tries)), None)
    if outcome is not None:
        logger.info("%s has ended: %s", task.task_id, json.dumps(outcome.results))
        task.xcom_push(key=XCOM, value=dict(outcome.results))
        for asset in context["task"].outlets:
            folder = {"run_folder": run_folder(task, params)}
            context["outlet_events"][asset].extra.update({**outcome.results, **folder})
    return returned


def read_outcome(task: Any, params: Mapping[str, Any], try_number: int) -> Outcome | None:
    """What the job of a try has written; None where Airflow does not reach it, or there is none."""
    folder = run_folder(task, params, "runs_address")
    path = f"{folder}{OUTCOMES}/{outcome_name(task.task_id, try_number)}"
    try:
        text = ObjectStoragePath(path).read_text()
        # A database need not take the numbers that are none, which JSON does not have either.
        found = json.loads(text, parse_constant=lambda _name: None)
        return Outcome(found["exit_code"], found["error"], found["results"])
    except FileNotFoundError:
        logger.info("no outcome of the job can be read from here: there is no %s", path)
    except (OSError, ImportError, ValueError, KeyError, TypeError) as error:
        logger.warning("the outcome of the job cannot be read from %s: %r", path, error)
    return None


def verdict(error: Exception, outcome: Outcome | None) -> Exception:
    """What to raise for an operator's error, so that Airflow does what the job's end asks for."""
    code = outcome.exit_code if outcome and outcome.exit_code else exit_code(error)
    line = outcome.error if outcome and outcome.error else reason(error)
    kind: type[Exception] = KINDS.get(code, AirflowException)
    meaning = f": {FINAL[code]}" if code in FINAL else ""
    return kind(line if code is None else f"{line} (exit code {code}{meaning})")


def exit_code(error: BaseException) -> int | None:
    """The exit code of the failed job, where the message has it."""
    message, _, _output = str(error).partition(_OUTPUT)
    found = _EXIT_CODE.findall(message)
    # On Kubernetes the exit code of the driver follows that of spark-submit.
    return int(found[-1]) if found else None


def reason(error: BaseException) -> str:
    """One line: the job's own `error: ...`, or the first line of the operator's message."""
    message = str(error)
    if lines := _ERROR_LINE.findall(message):
        return str(lines[-1])
    # The messages of others, such as that of a KeyError, say nothing without the kind.
    said = message.strip() if isinstance(error, AirflowException) else repr(error)
    return (said or repr(error)).splitlines()[0]


class Alert(BaseNotifier):
    """Posts a line for a task that failed after its last try, and logs it.

    The field `alert` of the variable names a connection of type HTTP, whose host takes
    `{"text": line}`, as the incoming webhooks of chats do; without it the line is logged only.
    """

    def notify(self, context: Context) -> None:
        """Sends the line; Airflow logs errors of this, which do not change the task's state."""
        line = alert_line(context)
        self.log.error(line)
        connection = deployment("alert")
        if connection:
            from airflow.providers.http.hooks.http import HttpHook

            # The path is part of the connection.
            hook = HttpHook(method="POST", http_conn_id=connection)
            hook.run(json={"text": line}, extra_options={"timeout": ALERT_SECONDS})


def alert_line(context: Context) -> str:
    """`DAG run TASK: what happened: why`, in one line."""
    task, error = context["ti"], context.get("exception")
    said = reason(error) if isinstance(error, BaseException) else str(error)
    is_refusal = isinstance(error, BaseException) and exit_code(error) == REFUSED
    happened = "refused" if is_refusal else "failed"
    return f"{task.dag_id} {task.run_id} {task.task_id} {happened}: {said}"
