"""Tasks get about the same to do, and every byte goes to one of them."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.readers.ranges import Split, pack, split_file

MB = 1 << 20


@given(st.lists(st.integers(0, 64 * MB), min_size=1, max_size=60), st.integers(1, 9))
def test_every_split_is_in_one_task_and_in_order(sizes, cores):
    splits = [Split(str(number), 0, None, size) for number, size in enumerate(sizes)]
    tasks = pack(splits, cores)
    assert [split for task in tasks for split in task] == splits
    assert all(tasks)
    assert len(tasks) >= min(cores, len(splits))
    assert all(sum(split.size for split in task) <= 48 * MB for task in tasks if len(task) > 1)


def test_many_small_files_share_tasks():
    splits = [Split(str(number), 0, None, 1000) for number in range(10_000)]
    assert len(pack(splits, 4)) < 200


def test_only_long_plain_files_are_cut(tmp_path):
    for name in ("a.txt", "b.txt.gz", "c.csv", "d.tsv"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(150 * MB)
    plain, packed, csv, csv_of_lines, tab = (
        list(split_file(tmp_path / name, kind, multiline=multiline))
        for name, kind, multiline in (
            ("a.txt", "text", True),
            ("b.txt.gz", "text", True),
            ("c.csv", "csv", True),
            ("c.csv", "csv", False),
            ("d.tsv", "csv", True),
        )
    )
    ranges = [(0, 64 * MB, 64 * MB), (64 * MB, 128 * MB, 64 * MB), (128 * MB, None, 22 * MB)]
    assert [(split.start, split.stop, split.size) for split in plain] == ranges
    assert [(split.start, split.stop, split.size) for split in csv_of_lines] == ranges
    assert len(tab) == 3
    (tmp_path / "c.csv").rename(tmp_path / "c.csv.gz")
    assert len(list(split_file(tmp_path / "c.csv.gz", "csv", multiline=False))) == 1
    assert [(split.start, split.stop, split.size) for split in packed + csv] == [
        (0, None, 600 * MB),
        (0, None, 150 * MB),
    ]


def test_a_file_that_went_away_is_still_planned(tmp_path):
    assert [split.size for split in split_file(tmp_path / "gone.txt", "text")] == [0]
