"""Where a job comes from is told where it can be known, and is never an error."""

import subprocess

import pytest

from pipelines import provenance
from pipelines.provenance import command_arguments, commit_of, given_on_command_line


def git(folder, *arguments: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A folder within a repository of one commit."""
    git(tmp_path, "init", "-q")
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "job.yaml").write_text("a: 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_is_that_of_the_folder(repository):
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert commit_of(repository) == commit
    (repository / "new.yaml").write_text("b: 1\n")
    assert commit_of(repository) == commit
    (repository / "job.yaml").write_text("a: 2\n")
    assert commit_of(repository) == f"{commit}-dirty"


def test_without_a_repository_or_git_no_commit_is_known(repository, monkeypatch):
    git(repository.parent, "tag", "v1")
    # Not by the name of a tag, which may be moved.
    assert commit_of(repository) == git(repository, "rev-parse", "HEAD")[:12]
    assert commit_of(repository / "absent") is None
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent.parent))
    other = repository.parent.parent / "other"
    other.mkdir()
    assert commit_of(other) is None
    monkeypatch.setenv("PATH", "")
    assert commit_of(repository) is None


def test_git_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(provenance, "_GIT", (str(slow),))
    monkeypatch.setattr(provenance, "GIT_SECONDS", 0.2)
    assert commit_of(tmp_path) is None


def test_arguments_are_those_of_the_command_around():
    assert command_arguments() is None
    with given_on_command_line(["train", "--set", "a=b"]):
        assert command_arguments() == ("train", "--set", "a=b")
    assert command_arguments() is None
