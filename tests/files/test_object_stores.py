"""Folders in a real store."""

from pipelines.files import storage, versions


def test_a_folder_of_a_bucket_is_whole_or_the_one_before(s3_bucket):
    folder = s3_bucket.root / "run" / "model"
    for content in ("first", "second"):
        with storage.built_folder(folder) as made:
            (made / "weights").write_text(content)
        assert (versions.current(folder) / "weights").read_text() == content
    assert not (folder / "weights").exists()
