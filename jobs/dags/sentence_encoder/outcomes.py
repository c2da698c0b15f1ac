"""The outcomes of jobs: retries, the states of Airflow's tasks, and alerts."""

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
    Asset,
    AssetAlias,
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
"""The key of the figures that a task hands on."""

FINAL = {2: "correct the settings or the input", 3: "the quality gate refuses the model"}
"""Exit codes that a retry would repeat; see docs/reference/commands.md."""
REFUSED = 3
NOTHING_NEW = 4
KINDS = {**dict.fromkeys(FINAL, AirflowFailException), NOTHING_NEW: AirflowSkipException}
"""Airflow's exceptions by exit code; any other code is a failure with retries."""

# The forms in messages of spark-submit's hook (client mode, Kubernetes), of Databricks, of pods and
# applications on Kubernetes, of EMR Serverless, and our own.
_EXIT_CODE = re.compile(
    r"(?:Error code is|[Ee]xit code(?: is)?|SystemExit|ExitCode|'exit_code'):? ([1-9]\d*)"
)
_OUTPUT = "Last spark-submit output"
_ERROR_LINE = re.compile(r"^error: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The outcome in a job's file; see `--outcome` in docs/reference/commands.md.

    Attributes:
        exit_code: 0 when done.
        error: Its line, if it failed.
        results: Figures, versions and names.
    """

    exit_code: int
    error: str | None
    results: Mapping[str, Any]


class Job:
    """Mix-in before an operator: the task ends like its job.

    Exit codes that a retry would repeat fail the task at once, and a job without anything new skips
    it. XCom and the events of the task's assets carry the results.
    """

    task_id: str

    # Airflow marks its own call of `execute` by an option.
    def execute(self, context: Context, **marks: Any) -> Any:
        """Run the operator."""
        skip_unless_wanted(self.task_id)
        return _ended(context, lambda: super(Job, self).execute(context, **marks))  # type: ignore[misc]

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Resume the operator after its deferral."""
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
        extra = {**outcome.results, "run_folder": run_folder(task, params)}
        for outlet in context["task"].outlets:
            event = context["outlet_events"][outlet]
            if not isinstance(outlet, AssetAlias):
                event.extra.update(extra)
            elif "store" in outcome.results:
                name = f"{outlet.name}/{outcome.results['store']}/{outcome.results['name']}"
                event.add(Asset(uri=name), extra=extra)
    return returned


def read_outcome(task: Any, params: Mapping[str, Any], try_number: int) -> Outcome | None:
    """Return the outcome of a try; None if it is missing or out of Airflow's reach."""
    folder = run_folder(task, params, "runs_address")
    path = f"{folder}{OUTCOMES}/{outcome_name(task.task_id, try_number)}"
    try:
        text = ObjectStoragePath(path).read_text()
        # JSON has no NaN, and Airflow's database may refuse it.
        found = json.loads(text, parse_constant=lambda _name: None)
        return Outcome(found["exit_code"], found["error"], found["results"])
    except FileNotFoundError:
        logger.info("no outcome of the job can be read from here: there is no %s", path)
    except (OSError, ImportError, ValueError, KeyError, TypeError) as error:
        logger.warning("the outcome of the job cannot be read from %s: %r", path, error)
    return None


def verdict(error: Exception, outcome: Outcome | None) -> Exception:
    """Return the exception for an operator's error, by the exit code of its job."""
    code = outcome.exit_code if outcome and outcome.exit_code else exit_code(error)
    line = outcome.error if outcome and outcome.error else reason(error)
    kind: type[Exception] = KINDS.get(code, AirflowException)
    meaning = f": {FINAL[code]}" if code in FINAL else ""
    return kind(line if code is None else f"{line} (exit code {code}{meaning})")


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of the failed job, if the message has it."""
    message, _, _output = str(error).partition(_OUTPUT)
    found = _EXIT_CODE.findall(message)
    # On Kubernetes the exit code of the driver follows that of spark-submit.
    return int(found[-1]) if found else None


def reason(error: BaseException) -> str:
    """Return one line: the job's own `error: ...`, or the first line of the operator's message."""
    message = str(error)
    if lines := _ERROR_LINE.findall(message):
        return str(lines[-1])
    # Messages of other libraries, such as that of a KeyError, need the name of their class.
    line = message.strip() if isinstance(error, AirflowException) else repr(error)
    return (line or repr(error)).splitlines()[0]


class Alert(BaseNotifier):
    """Log a line for a task after its last failed try, and post it.

    The field `alert` of the variable names a connection of type HTTP. Its host takes
    `{"text": line}`, like the incoming webhooks of chats. Without it nothing is posted.
    """

    def notify(self, context: Context) -> None:
        """Send the line; Airflow logs errors of it, and the task keeps its state."""
        line = alert_line(context)
        self.log.error(line)
        connection = deployment("alert")
        if connection:
            from airflow.providers.http.hooks.http import HttpHook

            # The path is part of the connection.
            hook = HttpHook(method="POST", http_conn_id=connection)
            hook.run(json={"text": line}, extra_options={"timeout": ALERT_SECONDS})


def alert_line(context: Context) -> str:
    """Return `DAG RUN TASK happened: reason`, in one line."""
    task, error = context["ti"], context.get("exception")
    cause = reason(error) if isinstance(error, BaseException) else str(error)
    is_refusal = isinstance(error, BaseException) and exit_code(error) == REFUSED
    happened = "refused" if is_refusal else "failed"
    return f"{task.dag_id} {task.run_id} {task.task_id} {happened}: {cause}"
