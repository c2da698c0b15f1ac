"""What a run writes is known in one place, from which a run that is begun anew deletes it."""

from pathlib import Path

from pipelines.files.run_folder import RunFolder


def test_all_that_a_run_writes_is_deleted_with_it() -> None:
    folder = RunFolder(Path("/runs/first"))
    properties = [name for name, one in vars(RunFolder).items() if isinstance(one, property)]
    paths = {name: getattr(folder, name) for name in properties if name != "is_run"}
    deleted = {*paths.pop("contents"), *paths.pop("marks")}
    # Checkpoints go one by one, what they have in common behind them, and the plan stays until the
    # next run replaces it. Attempts are never counted anew: a worker of the run before may still
    # write.
    kept = {folder.checkpoints, folder.frozen, folder.plan, folder.attempts}
    assert set(paths.values()) - deleted == kept
    assert deleted < set(paths.values())
    assert {path.parent for path in deleted} == {folder.path}
