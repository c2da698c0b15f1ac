"""What a stage has of a session that others have not: what follows from the conf."""

from __future__ import annotations

import pytest

from pipelines.errors import InputError
from pipelines.spark.stage_resources import check_resources, resources_of

SESSION = {
    "spark.master": "spark://host:7077",
    "spark.executor.cores": "8",
    "spark.executor.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
}
GPU = "spark.executor.resource.gpu.amount"


def test_what_differs_is_found_and_what_is_the_same_in_other_words_is_not():
    found = resources_of(
        SESSION,
        {
            "spark.task.cpus": "8",
            "spark.task.resource.gpu.amount": "1",
            "spark.executor.cores": "8",
            "spark.executor.memory": "2048m",
            "spark.executor.memoryOverhead": "4g",
            GPU: "1",
            "spark.sql.shuffle.partitions": "4",
        },
    )
    assert found.tasks == ("spark.task.cpus", "spark.task.resource.gpu.amount")
    assert found.executors == ("spark.executor.memoryOverhead", GPU)
    assert found.others == ("spark.sql.shuffle.partitions",)
    assert found.conf["spark.task.cpus"] == "8"
    assert found.conf["spark.executor.cores"] == "8"
    assert not found.dynamic


def test_a_default_of_sparks_is_no_difference():
    found = resources_of({}, {"spark.task.cpus": "1", "spark.executor.memory": "1024m"})
    assert (found.tasks, found.executors, found.others) == ((), (), ())


@pytest.mark.parametrize("master", ["local[2]", "local"])
def test_one_process_has_tasks_of_one_size(master):
    found = resources_of({"spark.master": master}, {"spark.task.cpus": "2"})
    with pytest.raises(InputError, match=r"^stages\.train\.spark\.task\.cpus: a session on `local"):
        check_resources("train", found)


@pytest.mark.parametrize("master", ["spark://h:1", "yarn", "k8s://https://h:1", "local-cluster[2]"])
def test_tasks_of_another_size_need_no_dynamic_allocation_and_other_executors_do(master):
    session = SESSION | {"spark.master": master}
    check_resources("train", resources_of(session, {"spark.task.cpus": "8"}))
    asked = {"spark.executor.memory": "8g"}
    with pytest.raises(InputError, match=r"^stages\.train\.spark\.executor\.memory: .* job of its"):
        check_resources("train", resources_of(session, asked))
    session["spark.dynamicAllocation.enabled"] = "true"
    check_resources("train", resources_of(session, asked))
