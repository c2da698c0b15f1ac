"""Lanes that Spark forms: what went in is in exactly one granule, or counted."""

import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lanes_factory import small_manifest

from pipelines.arrow_columns import lists_of
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.lanes.files import SCHEMA, LaneManifest, decode, negative_side, ragged
from pipelines.lanes.plan import Segment, count_same_group_in_step
from pipelines.lanes.reader import LaneReader
from pipelines.lanes.stage import largest_granule, prepare_lanes
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.tokens.summary import TokenSummary


@dataclass(frozen=True)
class Example:
    """One row of the tokens stage."""

    id: int
    group: int
    anchor: tuple[int, ...]
    positive: tuple[int, ...]
    negatives: tuple[tuple[int, ...], ...] = ()


def random_examples(count: int, groups: int, seed: int, *, negatives=0) -> list[Example]:
    generator = np.random.default_rng(seed)

    def text() -> tuple[int, ...]:
        return tuple(map(int, generator.integers(1, 900, generator.integers(1, 41))))

    return [
        Example(
            id=int(1000 * seed + i),
            group=int(generator.integers(groups)),
            anchor=text(),
            positive=text(),
            negatives=tuple(text() for _ in range(negatives)),
        )
        for i in range(count)
    ]


def binary(texts) -> pa.Array:
    ids = [None if text is None else np.array(text, "<i4").tobytes() for text in texts]
    return pa.array(ids, pa.binary())


def write_tokens(folder: Path, examples: list[Example]) -> None:
    lengths = [max(map(len, (e.anchor, e.positive, *e.negatives))) for e in examples]
    none = len(examples[0].negatives) == 0
    lists = [None if none else binary(e.negatives).to_pylist() for e in examples]
    scores = [None if none else [e.id, *range(len(e.negatives))] for e in examples]
    table = pa.table(
        {
            "id": pa.array([e.id for e in examples], pa.int64()),
            "group": pa.array([e.group for e in examples], pa.int64()),
            "length": pa.array(lengths, pa.int32()),
            "anchor": binary(e.anchor for e in examples),
            "positive": binary(e.positive for e in examples),
            "negatives": pa.array(lists, pa.list_(pa.binary())),
            "score": pa.nulls(len(examples), pa.float32()),
            "candidate_scores": pa.array(scores, pa.list_(pa.float32())),
        }
    )
    parquet = folder / "tokens" / "examples.parquet"
    parquet.mkdir(parents=True)
    pq.write_table(table.slice(0, len(examples) // 3), parquet / "part-0.parquet")
    pq.write_table(table.slice(len(examples) // 3), parquet / "part-1.parquet")
    summary = TokenSummary(
        examples=len(examples),
        texts=len(examples) * (2 + len(examples[0].negatives)),
        tokens=sum(lengths),
        max_length=40,
        cut=0,
        dropped=0,
        vocabulary=900,
        negatives=len(examples[0].negatives),
        columns=("positive", *(() if none else ("negatives", "candidate_scores"))),
        prompts={},
    )
    storage.write_json(folder / "tokens" / "manifest.json", asdict(summary))
    counted = {"lengths": sorted(Counter(lengths).items())}
    storage.write_json(folder / "tokens" / "lengths.json", counted)


def settings_for(folder: Path, granule: int, lanes: int) -> Config:
    return parse(
        {
            "prepared": {"folder": str(folder)},
            "lanes": {"count": lanes, "granule": granule},
            "tokens": {"max_length": 40},
            "training": {"granules_per_step": 2},
        }
    )


# Each example is a whole Spark job, so there are few of them and no shrinking.
@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    count=st.integers(120, 500),
    groups=st.sampled_from([3, 40, 10_000]),
    granule=st.sampled_from([2, 5, 8]),
    lanes=st.sampled_from([2, 6]),
    seed=st.integers(0, 99),
    negatives=st.sampled_from([0, 1, 3]),
)
def test_every_example_is_in_one_granule_or_counted(
    spark, count, groups, granule, lanes, seed, negatives
):
    with TemporaryDirectory() as name:
        folder = Path(name)
        examples = random_examples(count, groups, seed, negatives=negatives)
        write_tokens(folder, examples)
        most = max(Counter(e.group for e in examples).values())
        try:
            manifest = prepare_lanes(spark, settings_for(folder, granule, lanes))
        except InputError as error:
            # Only groups that are too large to be spread can leave less than a row.
            assert error.key == "lanes.granule"
            assert most * granule > count // 2
            return
        check_lanes(folder / "lanes", manifest, {e.id: e for e in examples})


def check_lanes(folder: Path, manifest: LaneManifest, examples: dict[int, Example]) -> None:
    reader = LaneReader(folder, manifest)
    seen: list[int] = []
    tokens = slots = 0
    steps: Counter[tuple[int, int, int]] = Counter()
    members: Counter[tuple[Segment, int]] = Counter()
    for address, batch in reader:
        assert batch.num_rows == manifest.granule
        groups = batch.column("group").to_pylist()
        assert len(set(groups)) == len(groups), "two of a group in a granule"
        granule = decode(batch, reader.number(address))
        (segment,) = [s for s in manifest.segments if 0 <= address.row - s.first_row < s.rows]
        assert all(side.token_ids.shape[1] <= segment.length for side in granule.sides.values())
        assert tuple(granule.sides) == manifest.sides
        for row, number in enumerate(batch.column("id").to_pylist()):
            example = examples[number]
            assert ids_of(granule.anchor, row) == example.anchor
            assert ids_of(granule.positive, row) == example.positive
            assert tuple(ids_of(side, row) for side in granule.negatives) == example.negatives
            if example.negatives:
                of_negatives = [*range(len(example.negatives))]
                assert granule.candidate_scores[row].tolist() == [number, *of_negatives]
            assert example.group == groups[row]
        seen += batch.column("id").to_pylist()
        step = address.lane // manifest.granules_per_step
        steps.update((address.row, step, group) for group in groups)
        members.update((segment, group) for group in groups)
        tokens += granule.tokens
        slots += granule.padded_tokens
    assert len(set(seen)) == len(seen) == manifest.placed
    assert manifest.examples == len(examples) == len(seen) + sum(manifest.left_over.values())
    assert manifest.same_group_in_step == sum(count for count in steps.values() if count > 1)
    # As few as there can be: what is one too many for the steps of a segment meets another.
    steps_per_row = manifest.lanes // manifest.granules_per_step
    assert manifest.same_group_in_step == sum(
        count_same_group_in_step(count, segment.rows * steps_per_row)
        for (segment, _), count in members.items()
    )
    assert (manifest.tokens, manifest.slots) == (tokens, slots)
    assert (manifest.paired, manifest.scored) == (True, False)
    assert {len(e.negatives) for e in examples.values()} == {manifest.negatives}
    assert manifest.candidates_scored == (manifest.negatives > 0)
    assert manifest == LaneManifest.load(folder)
    parts = [len(list(lane.glob("*.arrow"))) for lane in folder.glob("lane-*")]
    assert parts == [parts[0]] * manifest.lanes


def ids_of(side, row: int) -> tuple[int, ...]:
    assert not side.token_ids[row, side.lengths[row] :].any()
    return tuple(side.token_ids[row, : side.lengths[row]].tolist())


def test_the_same_lanes_byte_for_byte(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.lanes.stage.PART_BYTES", 5000)
    examples = random_examples(400, 60, 1, negatives=2)
    files = []
    for name, rows in (("a", examples), ("b", examples[::-1])):
        write_tokens(tmp_path / name, rows)
        manifest = prepare_lanes(spark, settings_for(tmp_path / name, 4, 2))
        lanes = tmp_path / name / "lanes"
        files.append({p.relative_to(lanes): p.read_bytes() for p in lanes.rglob("*.arrow")})
    assert files[0] == files[1]
    assert len(files[0]) > manifest.lanes, "several parts a lane"
    check_lanes(tmp_path / "b" / "lanes", manifest, {e.id: e for e in examples})


def test_a_corpus_smaller_than_a_row_is_refused(spark, tmp_path):
    write_tokens(tmp_path, random_examples(30, 30, 1))
    with pytest.raises(InputError, match=r"^lanes\.granule: 30 examples do not fill a row"):
        prepare_lanes(spark, settings_for(tmp_path, 16, 2))
    assert not (tmp_path / "lanes").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokens"]


@pytest.mark.parametrize(
    "groups, told",
    [
        (1, "40 examples do not fill a row of 2 lanes x 16: .* they form 1 group .* of 40"),
        (5, "they form 5 groups .* with more groups, or set it to at most 5"),
    ],
)
def test_what_limits_is_named_where_groups_are_few(spark, tmp_path, groups, told):
    examples = random_examples(40, 1, 1)
    # All of one length: groups are spread in each bucket of lengths by itself.
    examples = [
        replace(example, group=i % groups, anchor=example.anchor[:1], positive=example.positive[:1])
        for i, example in enumerate(examples)
    ]
    write_tokens(tmp_path, examples)
    with pytest.raises(InputError, match=rf"^lanes\.granule: .*{told}") as raised:
        prepare_lanes(spark, settings_for(tmp_path, 16, 2))
    assert ("at most" in raised.value.remedy) == (groups > 1)
    if groups > 1:
        assert prepare_lanes(spark, settings_for(tmp_path, groups, 2)).rows


@pytest.mark.parametrize(
    "sizes, below, expected",
    [
        ({1: 100}, 64, 50),
        ({2000: 1}, 64, None),
        ({2000: 1, 1: 10}, 64, 6),
        ({66: 2}, 8, 2),
        ({1: 4, 2: 3}, 8, 5),
        ({500: 3}, 3, 2),
    ],
)
def test_the_largest_granule_of_groups(sizes, below, expected):
    assert largest_granule(sizes, lambda granule: 2, below) == expected


def test_a_positive_for_only_some_examples_is_refused(spark, tmp_path):
    write_tokens(tmp_path, random_examples(40, 40, 1))
    for path in (tmp_path / "tokens" / "examples.parquet").iterdir():
        table = pq.read_table(path)
        texts = table["positive"].to_pylist()
        texts[:5] = [None] * 5
        place = table.column_names.index("positive")
        pq.write_table(table.set_column(place, "positive", pa.array(texts, pa.binary())), path)
    message = r"^corpus\.pair_columns: only \d+ of \d+ examples have a value in `positive`"
    with pytest.raises(InputError, match=message):
        prepare_lanes(spark, settings_for(tmp_path, 10, 2))
    assert not (tmp_path / "lanes").exists()


def test_no_tokens_is_refused(spark, tmp_path):
    with pytest.raises(InputError, match=r"^prepared\.folder: there are no tokens"):
        prepare_lanes(spark, settings_for(tmp_path, 4, 2))


def test_lanes_of_another_format_are_refused(tmp_path):
    storage.write_json(tmp_path / "manifest.json", {"format": 99})
    with pytest.raises(InputError, match="another format"):
        LaneManifest.load(tmp_path)


def test_the_digest_tells_lanes_apart(tmp_path):
    manifest = small_manifest()
    manifest.save(tmp_path)
    assert LaneManifest.load(tmp_path).digest == manifest.digest
    assert replace(manifest, rows=4).digest != manifest.digest
    assert replace(manifest, checksums=manifest.checksums[::-1]).digest != manifest.digest


@pytest.mark.parametrize(("whole", "damaged"), [('"rows": 5', '"rows": 4'), ("{", "")])
def test_a_damaged_manifest_is_refused(tmp_path, whole, damaged):
    small_manifest().save(tmp_path)
    path = tmp_path / "manifest.json"
    text = path.read_text()
    assert whole in text
    path.write_text(text.replace(whole, damaged, 1))
    with pytest.raises(InputError, match=rf"^prepared\.folder: {re.escape(str(path))} is damaged"):
        LaneManifest.load(tmp_path)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=9), st.data())
def test_ragged_reads_any_slice_of_a_binary_column(texts, data):
    column = binary(texts)
    start = data.draw(st.integers(0, len(texts)))
    ids, lengths = ragged(column.slice(start))
    assert lengths.tolist() == [len(t) for t in texts[start:]]
    assert ids.tolist() == [i for t in texts[start:] for i in t]


ids = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20)


@st.composite
def example_texts(draw):
    """The texts of some examples by their sides, with one or more hard negatives."""
    names = ("anchor", "positive", *map(negative_side, range(draw(st.integers(1, 3)))))
    rows = draw(st.lists(st.tuples(*[ids] * len(names)), min_size=1, max_size=6))
    return dict(zip(names, zip(*rows, strict=True), strict=True))


@given(example_texts(), st.data())
def test_each_wanted_side_is_padded_to_its_own_longest_text(sides, data):
    wanted = data.draw(st.sets(st.sampled_from([*sides])))
    count = len(sides["anchor"])
    columns = {field.name: pa.nulls(count, field.type) for field in SCHEMA} | {
        "id": pa.array(range(count), pa.int64()),
        "group": pa.array(range(count), pa.int64()),
        "anchor": binary(sides["anchor"]),
        "positive": binary(sides["positive"]),
        "negatives": lists_of([binary(sides[name]) for name in [*sides][2:]]),
    }
    # As Spark reads only a part of a file, or cuts one.
    whole = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    batch = pa.concat_batches([whole, whole]).slice(count)
    granule = decode(batch, 7, wanted)
    assert set(granule.sides) == {"anchor", *wanted}
    for name, side in granule.sides.items():
        longest = max(map(len, sides[name]))
        assert side.token_ids.shape == (count, -(-longest // 8) * 8)
        assert [list(ids_of(side, row)) for row in range(count)] == list(sides[name])
    assert granule.tokens == sum(len(text) for name in granule.sides for text in sides[name])
    assert granule.padded_tokens == sum(side.token_ids.size for side in granule.sides.values())
