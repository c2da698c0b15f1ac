"""Outcomes of jobs: exit codes that Airflow sees, what is tried again, and alerts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier, RetryDecision, RetryPolicy, Variable

if TYPE_CHECKING:
    from airflow.sdk import Context

VARIABLE = "sentence_encoder"
"""The Airflow variable, JSON, that holds the settings of a deployment."""

ALERT_SECONDS = 30

FINAL = {2: "the settings or the input have to be mended", 3: "the quality gate refuses the model"}
"""Exit codes that a retry would not change; see docs/jobs.md."""

# As the messages of spark-submit's hook (client mode, Kubernetes) and of Databricks have it.
_EXIT_CODE = re.compile(r"(?:Error code is|exit code is|SystemExit): ([1-9]\d*)")
_OUTPUT = "Last spark-submit output"
_ERROR_LINE = re.compile(r"^error: (.+)$", re.MULTILINE)


def exit_code(error: BaseException) -> int | None:
    """The exit code of the failed job, where the operator's message has it."""
    message, _, _output = str(error).partition(_OUTPUT)
    found = _EXIT_CODE.findall(message)
    # On Kubernetes the exit code of the driver follows that of spark-submit.
    return int(found[-1]) if found else None


def reason(error: BaseException) -> str:
    """One line: the job's own `error: ...`, or the first line of the operator's message."""
    lines = _ERROR_LINE.findall(str(error))
    return lines[-1] if lines else (str(error).strip() or repr(error)).splitlines()[0]


class RetryWhatMayPass(RetryPolicy):
    """Fails at once for exit codes in :data:`FINAL`; otherwise the task's retries apply."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decides, on the worker, whether the task is tried again."""
        why = FINAL.get(exit_code(exception) or 0)
        return RetryDecision.fail(reason=why) if why else RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """An empty dict: there is no state."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> RetryWhatMayPass:
        """The policy, which has no state."""
        return cls()


class Alert(BaseNotifier):
    """Posts a line for a task that failed after its last try, and logs it.

    The field `alert` of the variable names a connection of type HTTP, whose host takes
    `{"text": line}`, as the incoming webhooks of chats do; without it the line is logged only.
    """

    def notify(self, context: Context) -> None:
        """Sends the line; Airflow logs errors of this, which do not change the task's state."""
        line = alert_line(context)
        self.log.error(line)
        connection = Variable.get(VARIABLE, default={}, deserialize_json=True).get("alert")
        if connection:
            from airflow.providers.http.hooks.http import HttpHook

            # The path is part of the connection.
            hook = HttpHook(method="POST", http_conn_id=connection)
            hook.run(json={"text": line}, extra_options={"timeout": ALERT_SECONDS})


def alert_line(context: Context) -> str:
    """`DAG run TASK: what happened: why`, in one line."""
    task, error = context["ti"], context.get("exception")
    said = reason(error) if isinstance(error, BaseException) else str(error)
    happened = "refused" if isinstance(error, BaseException) and exit_code(error) == 3 else "failed"
    return f"{task.dag_id} {task.run_id} {task.task_id} {happened}: {said}"
