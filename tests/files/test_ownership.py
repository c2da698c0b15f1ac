"""What commands take over, and what is the user's: on a file system and in an object store."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.begun import discard_begun, next_folder
from pipelines.files.locations import Location, RemotePath
from pipelines.files.ownership import (
    EXPORT,
    FITTED,
    MEASURED,
    NEGATIVES,
    OUTCOMES,
    PREPARED,
    RUN,
    TABLE,
    VERSION,
    Kind,
    check_free,
    check_ours,
    foreign,
)
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.files.versions import Entry, begin, current, publish, put_bytes
from pipelines.settings.load import parse
from pipelines.vectors.teacher import forget_texts

KEY = "a.folder"
STAGE = '{"fingerprint": null, "seconds": 1.0}'
SOURCES = '{"settings": "s", "sources": {}}'
OURS: dict[str, tuple[Kind, dict[str, str]]] = {
    "preparation": (
        PREPARED,
        {
            "corpus/stage.json": STAGE,
            "corpus/pairs.parquet/part-00000.zstd.parquet": "",
            "corpus/pairs.parquet/_SUCCESS": "",
            "corpus/pairs.parquet/.part-00000.zstd.parquet.crc": "",
            "corpus/quarantine.parquet": "",
            "corpus/evaluation/queries.parquet": "",
            "tokens/manifest.json": '{"examples": 1}',
            "tokens/tokenizer/tokenizer.json": "",
            "lanes/stage.json": STAGE,
            "lanes/lane-000/part-00000.arrow": "",
            "units/1/sources.json": SOURCES,
            "units/1/rows/part-00000.parquet": "",
            "units/sources/wiki/2/totals.parquet": "",
            "teacher_texts/all/vectors/_plan.json": "",
            "report.html": "",
            "stages.json": "[]",
            ".lock": "",
        },
    ),
    "run": (
        RUN,
        {
            "environment.json": '{"sentence-pipelines": "1"}',
            "config.yaml": "",
            "checkpoints/plan.json": "{}",
            "checkpoints/step-00000002-attempt-2/model.safetensors": "",
            "model/1_Pooling/config.json": "",
            "model/tokenizer.json": "",
            "tensorboard/events.out.tfevents.1": "",
        },
    ),
    "table": (
        TABLE,
        {
            "_plan.json": '{"identity": {}, "parts": []}',
            "part-00000-00000.parquet": "",
            "_index/index.json": "",
            "_index/part-00000-00000.faiss": "",
            "_changes/00000.parquet": "",
        },
    ),
    "negatives": (
        NEGATIVES,
        {"_mining.json": '{"texts": {}, "negatives": {}}', "part-00000.parquet": "", "_work/x": ""},
    ),
    "version": (
        VERSION,
        {"promotion.json": '{"run": "r", "replaces": null}', "model.safetensors": ""},
    ),
    "export": (
        EXPORT,
        {
            "export.json": '{"model_digest": "0", "runtime": "onnx"}',
            "onnx/model.onnx": "",
            "tokenizer.json": "",
            "query_0_Transformer/model.safetensors": "",
            "document_2_Dense/config.json": "",
        },
    ),
}


@pytest.fixture(params=["file system", "store"])
def home(request, tmp_path) -> Location:
    if request.param == "file system":
        return tmp_path / "home"
    return RemotePath.parse(f"memory://{tmp_path.name}/home")


def write(folder: Location, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        if isinstance(path, RemotePath):
            put_bytes(path, content.encode())
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


@pytest.mark.parametrize("name", OURS)
def test_what_commands_write_is_theirs(home, name):
    kind, files = OURS[name]
    write(home, files)
    assert foreign(home, kind, whole=True) == []
    check_ours(KEY, home, kind, whole=True)


STRANGERS = {
    "preparation": (
        *("corpus/notes.txt", "corpus/evaluation/notes/mine.txt", "tokens/tokenizer/notes.md"),
        *("lanes/lane-000/mine.arrow", "units/raw.jsonl", "units/1/rows/mine.csv"),
        *("units/sources/wiki/notes.txt", "teacher_texts/notes.txt"),
        *("teacher/examples.parquet/part-00000.parquet", "corpus/.corpus.next/part-0.parquet"),
    ),
    "run": (
        *("model/notes.txt", "model/onnx/model.onnx", "checkpoints/mine.ckpt", "start/notes.md"),
        *("tensorboard/mine/notes.txt", "evaluation/mine.csv", "attempts/notes.txt"),
        *("best/notes.txt", "adapter/notes.txt", "tracking/mine/run.db"),
    ),
    "table": (
        *("notes.txt", "finished/part-00000-00000.parquet", "_index/mine/index.json"),
        *(".table.gone/notes.txt", ".table.next/part-0.parquet", "_kept/notes.txt", ".old"),
    ),
    "negatives": ("notes.txt", "earlier/part-00000.parquet", ".mined.gone"),
    "version": ("notes.txt", "onnx/model.onnx"),
    "export": (
        *("notes.txt", "onnx/mine.onnx", "query_0_answers/x.csv"),
        *("document_2024_reports/x.pdf", "document_2024_Reports/x.pdf"),
    ),
}


@pytest.mark.parametrize(
    ("name", "stranger"), [(name, one) for name, found in STRANGERS.items() for one in found]
)
def test_what_no_command_has_written_is_refused(home, name, stranger):
    kind, files = OURS[name]
    write(home, {**files, stranger: "mine"})
    if name in ("preparation", "run"):
        # Without the rest of the folder, which stays.
        assert foreign(home, kind, whole=False) == [stranger]
    with pytest.raises(InputError, match=f"^{KEY}: .* holds other files .*{Path(stranger).name}"):
        check_ours(KEY, home, kind, whole=True)


@pytest.mark.parametrize("name", OURS)
def test_a_folder_without_a_mark_is_nobodys_to_take(home, name):
    kind, files = OURS[name]
    unmarked = {one: "" for one in files if one not in kind.marks and not one.startswith("units")}
    unmarked.pop(".lock", None)
    # A record of another tool of the same name.
    others = dict.fromkeys(kind.marks, '{"name": "theirs"}')
    write(home, unmarked | others)
    with pytest.raises(InputError, match=rf"^{KEY}: .* holds other files .*\. Move them elsewhere"):
        check_ours(KEY, home, kind, whole=False)


@pytest.mark.parametrize("name", ["units/raw.jsonl", "units/mine/a.txt", "report.html", "a.txt"])
def test_one_file_of_the_user_is_enough(home, name):
    write(home, {name: "mine"})
    with pytest.raises(InputError, match=rf"holds other files \({name.partition('/')[0]}\)"):
        check_ours(KEY, home, PREPARED, whole=False)


@pytest.mark.parametrize("name", ["report.html", "metrics.json"])
def test_an_evaluation_leaves_files_of_the_user(home, name):
    write(home, {"model/config.json": "mine", "notes.txt": "mine"})
    check_free(KEY, home, MEASURED)
    write(home, {name: "mine"})
    with pytest.raises(InputError, match=rf"holds other files \({name}\)"):
        check_free(KEY, home, MEASURED)
    write(home, {"jobs.json": '{"jobs": [], "prepared_folder": null}'})
    check_free(KEY, home, MEASURED)


def test_the_work_folder_of_an_estimator_is_known_by_its_record(home):
    pairs = {"pairs/part-00000.parquet": "", "notes.txt": "mine"}
    write(home, {**pairs, "prepared/corpus/stage.json": "{}"})
    with pytest.raises(InputError, match=r"holds other files \(pairs\)"):
        check_free(KEY, home, FITTED)
    for mark in ({"pairs.json": '{"columns": []}'}, {"prepared/corpus/stage.json": STAGE}):
        write(home, mark)
        check_free(KEY, home, FITTED)
    write(home, {"pairs/mine.csv": "mine"})
    with pytest.raises(InputError, match=r"holds other files \(pairs/mine\.csv\)"):
        check_free(KEY, home, FITTED)


def test_a_stage_of_ours_needs_its_own_mark(home):
    write(
        home, {"corpus/stage.json": STAGE, "lanes/manifest.json": "{}", "tokens/manifest.json": ""}
    )
    write(home, {"lanes/lane-000/part-00000.arrow": "mine"})
    assert foreign(home, PREPARED, whole=False) == [
        *("lanes/lane-000/part-00000.arrow", "lanes/manifest.json", "tokens/manifest.json")
    ]


def test_beside_what_a_preparation_writes_a_folder_of_its_may_hold_more(home):
    write(home, {"corpus/stage.json": STAGE, "notes.txt": "mine", "other/corpus/a.txt": "mine"})
    check_ours(KEY, home, PREPARED, whole=False)
    with pytest.raises(InputError, match=r"holds other files \(notes.txt, other/corpus/a.txt\)"):
        check_ours(KEY, home, PREPARED, whole=True)


def test_a_folder_where_the_first_preparation_was_killed_is_its_own(tmp_path):
    storage.aside_name(tmp_path / "corpus", ".part").mkdir()
    write(tmp_path, {"units/1/sources.json": SOURCES, "units/1/rows/part-0.parquet": ""})
    check_ours(KEY, tmp_path, PREPARED, whole=False)


def test_versions_in_a_store_are_looked_into(tmp_path):
    folder = RemotePath.parse(f"memory://{tmp_path.name}/prepared")
    version = begin(folder / "corpus")
    write(version, {"stage.json": STAGE, "funnel.json": "[]"})
    publish(version)
    # What a killed job has left is not the current version.
    write(begin(folder / "corpus"), {"scratch/0/part-0.parquet": ""})
    check_ours(KEY, folder, PREPARED, whole=True)
    write(current(folder / "corpus"), {"notes.txt": "mine"})
    write(folder, {"corpus/more.txt": "mine"})
    assert foreign(folder, PREPARED, whole=False) == ["corpus/more.txt", "corpus/notes.txt"]


def test_links_are_the_users(tmp_path):
    kind, files = OURS["preparation"]
    write(tmp_path / "prepared", files)
    shutil.move(tmp_path / "prepared" / "lanes", tmp_path / "large")
    (tmp_path / "prepared" / "lanes").symlink_to(tmp_path / "large")
    assert foreign(tmp_path / "prepared", kind, whole=False) == ["lanes"]
    write(tmp_path / "table", OURS["table"][1])
    (tmp_path / "link").symlink_to(tmp_path / "table")
    with pytest.raises(InputError, match=rf"is a link\. Name {tmp_path}/table"):
        check_ours(KEY, tmp_path / "link", TABLE, whole=True)


def test_empty_folders_of_the_user_stay(tmp_path):
    write(tmp_path, OURS["run"][1])
    for name in ("model/2_Normalize", "model/mine"):
        (tmp_path / name).mkdir(parents=True)
    assert foreign(tmp_path, RUN, whole=False) == ["model/mine"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"is a file\. Name a folder"):
        check_ours(KEY, tmp_path / "file", PREPARED, whole=False)


def test_outcomes_need_no_mark(tmp_path):
    write(tmp_path, {"train-1.json": "{}", "embed-12.json": "{}", "notes.txt": json.dumps("mine")})
    assert foreign(tmp_path, OUTCOMES, whole=True) == ["notes.txt"]
    assert foreign(tmp_path / "nowhere", OUTCOMES, whole=True) == []


def ways_of(folder: object, root: Path) -> list[tuple[str, ...]]:
    """The places that the entries of a folder give, but for those outside of it."""
    known = vars(type(folder)).items()
    names = [name for name, one in known if isinstance(one, property | Entry)]
    found = [getattr(folder, name) for name in names]
    return [one.relative_to(root).parts for one in found if isinstance(one, Path)]


def test_all_that_the_layouts_of_folders_name_is_theirs(tmp_path):
    prepared, run = PreparedFolder(tmp_path), RunFolder(tmp_path)
    stages = (prepared, prepared.corpus, prepared.tokens, prepared.teacher, prepared.lanes)
    for kind, folders in ((PREPARED, stages), (RUN, (run,))):
        for way in (way for folder in folders for way in ways_of(folder, tmp_path)):
            assert kind.writes(way, is_folder=True), way
    assert {path.name for path in (*run.contents, *run.marks)} <= RUN.taken


@pytest.mark.parametrize(
    "name",
    [
        *(".DS_Store", "corpus/.DS_Store", "lanes/lane-000/._part-0.arrow", "units/Thumbs.db"),
        *("corpus/pairs.parquet_$folder$", ".lock.0123456789abcdef0123456789abcdef"),
        *("..lock.0123abcd.gone", "teacher_texts/all/..vectors.lock.0123abcd.gone"),
    ],
)
def test_what_systems_leave_in_a_folder_is_nobodys(home, name):
    kind, files = OURS["preparation"]
    write(home, {**files, name: ""})
    check_ours(KEY, home, kind, whole=True)


def test_where_both_cases_of_letters_are_the_same_a_name_is_the_users_in_any(tmp_path):
    write(tmp_path, {**OURS["run"][1], "Report.html": "mine", "TOKENS.json": "mine"})
    # Both names of one file, as such a file system has them.
    (tmp_path / "report.html").hardlink_to(tmp_path / "Report.html")
    assert foreign(tmp_path, RUN, whole=False) == ["Report.html"]
    (tmp_path / "jobs.json").write_text('{"jobs": []}')
    with pytest.raises(InputError, match=r"holds other files \(Report.html\)"):
        check_free(KEY, tmp_path, MEASURED)


def test_a_job_that_replaces_folders_meanwhile_is_no_error(tmp_path, monkeypatch):
    write(tmp_path, OURS["run"][1])
    iterdir = Path.iterdir

    def gone(folder: Path) -> Iterator[Path]:
        if folder.name == "model":
            shutil.rmtree(folder)
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", gone)
    assert foreign(tmp_path, RUN, whole=False) == []


def killed(*_args: object, **_options: object) -> None:
    raise KeyboardInterrupt


def test_what_is_removed_is_ours_whenever_a_job_is_killed(tmp_path, monkeypatch):
    table, texts, teacher = (tmp_path / name for name in ("table", "texts", "teacher"))
    write(next_folder(table), OURS["table"][1])
    write(texts, OURS["preparation"][1])
    write(teacher, {"teacher/stage.json": STAGE, "teacher/examples.parquet/part-0.parquet": ""})
    # Files go in any order, the mark perhaps first.
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        discard_begun(table)
    for folder in (texts, teacher):
        with pytest.raises(KeyboardInterrupt):
            forget_texts(parse({"prepared": {"folder": str(folder)}}))
        check_ours(KEY, folder, PREPARED, whole=False)
    for gone in (next_folder(table), texts / "teacher_texts" / "all", teacher / "teacher"):
        assert not gone.exists()


def test_all_that_a_run_writes_is_deleted_with_it() -> None:
    folder = RunFolder(Path("/runs/first"))
    entries = [name for name, one in vars(RunFolder).items() if isinstance(one, Entry)]
    paths = {name: getattr(folder, name) for name in entries}
    deleted = {*folder.contents, *folder.marks}
    # Checkpoints go one by one, what they have in common behind them, and the plan stays until the
    # next run replaces it. Attempts are never counted anew: a worker of the run before may still
    # write.
    kept = {folder.checkpoints, folder.frozen, folder.plan, folder.attempts}
    assert set(paths.values()) - deleted == kept
    assert deleted < set(paths.values())
    assert {path.parent for path in deleted} == {folder.path}
