"""Encoders as stages of `pyspark.ml` pipelines: trained, saved, loaded."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import SQLTransformer, StandardScaler
from pyspark.ml.linalg import VectorUDT

from pipelines.errors import InputError
from pipelines.lanes.files import LaneManifest
from pipelines.ml import SentenceEncoder, SentenceEncoderModel
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import default_start, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.weights import random_weights
from pipelines.tokens.vocabulary import vocabulary_size

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

SETTINGS = {
    "corpus": {"evaluation_share": 0, "min_characters": 3},
    "tokens": {"max_length": 16, "vocabulary": "train", "vocabulary_size": 400},
    "lanes": {"count": 2, "granule": 8},
    "encoder": {"start": "random", "layers": 1, "hidden": 16, "heads": 2},
    "training": {"engine": "local", "framework": "torch", "workers": 1, "max_steps": 4},
}

SCORED = {"group_column": "animal", "score_column": "alike"}
REGRESSION = {"name": "cosine_regression"}


@pytest.fixture(scope="module")
def pairs(spark):
    animals = ("cat", "dog", "horse", "sparrow", "salmon", "frog", "bee", "whale")
    places = ("in the house", "near the river", "on a hill", "under a tree", "at night", "alone")
    rows = [
        (f"the {a} sleeps {p}", f"a sleeping {a} {p}", a, number / 10)
        for a in animals
        for number, p in enumerate(places)
    ]
    schema = "question string, answer string, animal string, alike double"
    return spark.createDataFrame(rows, schema)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    words = vocabulary_size(default_start())
    spec = BertSpec(vocabulary=words, layers=1, hidden=16, heads=2, intermediate=32)
    folder = tmp_path_factory.mktemp("small") / "model"
    write_encoder(folder, spec, random_weights(spec, 5), default_start(), "")
    return folder


def vectors(frame):
    rows = frame.orderBy("question").collect()
    return [row["question"] for row in rows], np.array([row["vector"] for row in rows])


def test_a_pipeline_is_fitted_saved_and_loaded(spark, pairs, tmp_path) -> None:
    cut = SQLTransformer(statement="SELECT * FROM __THIS__ WHERE question LIKE 'the %'")
    encoder = SentenceEncoder(
        pairCols=["question", "answer"],
        workFolder=str(tmp_path / "work"),
        settings=SETTINGS | {"corpus": SETTINGS["corpus"] | SCORED, "objective": REGRESSION},
        outputCol="vector",
        precision="fp32",
    )
    Pipeline(stages=[cut, encoder]).save(str(tmp_path / "unfitted"))
    fitted = Pipeline.load(str(tmp_path / "unfitted")).fit(pairs)
    texts, expected = vectors(fitted.transform(pairs))
    assert expected.shape == (48, 16)
    assert LaneManifest.load(tmp_path / "work" / "prepared" / "lanes").scored
    tokens = pq.read_table(tmp_path / "work" / "prepared" / "tokens" / "examples.parquet")
    assert len(set(tokens["group"].to_pylist())) == 8
    own = load_embedder(tmp_path / "work" / "run" / "model")(texts)
    np.testing.assert_allclose(expected, own, atol=1e-5)

    fitted.save(str(tmp_path / "fitted"))
    (tmp_path / "work").rename(tmp_path / "moved")
    again = PipelineModel.load(str(tmp_path / "fitted"))
    assert isinstance(again.stages[1], SentenceEncoderModel)
    assert again.stages[1].uid == fitted.stages[1].uid
    np.testing.assert_allclose(vectors(again.transform(pairs))[1], expected, atol=1e-6)
    with pytest.raises((Py4JJavaError, AnalysisException), match="already exists"):
        again.save(str(tmp_path / "fitted"))
    again.write().overwrite().save(str(tmp_path / "other"))
    own = again.stages[1]
    with pytest.raises(InputError, match=r"^modelFolder: it is in .*\. Save to another path"):
        own.write().overwrite().save(str(Path(own.getOrDefault("modelFolder")).parent))


def test_estimators_of_spark_take_the_output(spark, small_model) -> None:
    texts = [(f"{word} number {n}",) for word in ("cat", "tax") for n in "123"]
    # In one partition: an estimator goes over its rows again and again.
    frame = spark.createDataFrame([*texts, (None,)], "text string").coalesce(1)
    encoder = SentenceEncoderModel(modelFolder=str(small_model), outputCol="vector")
    arrays = encoder.transform(frame).dropna()
    clusters = KMeans(featuresCol="vector", k=2, seed=1, maxIter=1, initMode="random").fit(arrays)
    assert np.array(clusters.clusterCenters()).shape == (2, 16)

    as_vectors = encoder.copy({encoder.outputType: "vector"})
    found = as_vectors.transform(frame)
    assert isinstance(found.schema["vector"].dataType, VectorUDT)
    rows = {row["text"]: row["vector"] for row in found.collect()}
    assert rows.pop(None) is None
    expected = {row["text"]: row["vector"] for row in arrays.collect()}
    assert {text: list(vector) for text, vector in rows.items()} == expected
    scaler = StandardScaler(inputCol="vector", outputCol="scaled", withMean=True, withStd=False)
    fitted = Pipeline(stages=[as_vectors, scaler]).fit(frame.dropna())
    mean = fitted.stages[1].mean.toArray()
    np.testing.assert_allclose(mean, np.mean([*expected.values()], axis=0), rtol=1e-6)
    for params in ({"outputType": "tensor"}, {"outputType": "vector", "quantise": "int8"}):
        with pytest.raises(InputError, match=r"^outputType: "):
            SentenceEncoderModel(modelFolder=str(small_model), **params).transform(frame)


def test_params_that_do_not_fit_are_refused(spark, pairs, tmp_path) -> None:
    work = str(tmp_path / "work")
    cases = [
        ({"settings": SETTINGS}, "workFolder: it is not set"),
        ({"workFolder": work, "pairCols": ["question"]}, "pairCols: 1 columns make no pairs"),
        ({"workFolder": work}, "pairCols: the frame has no column `sentence1`"),
        (
            {
                "workFolder": work,
                "pairCols": ["question", "answer"],
                "settings": {"corpus": {"group_column": "plant"}},
            },
            "corpus.group_column: the frame has no column `plant`",
        ),
        ({"workFolder": work, "settings": "training: {worker: 2}"}, "training.worker: there is no"),
    ]
    for params, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            SentenceEncoder(**params).fit(pairs)
    with pytest.raises(InputError, match=r"^settings: `just words` holds no settings"):
        SentenceEncoder(settings="just words")
    with pytest.raises(InputError, match=r"^modelFolder: it is not set"):
        SentenceEncoderModel(inputCol="question").transform(pairs)
    model = SentenceEncoderModel(modelFolder=str(tmp_path))
    with pytest.raises(InputError, match=r"^path: `s3a://bucket/model` is on s3a"):
        model.save("s3a://bucket/model")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("earlier", [{}, {"pairs.json": '{"columns": []}'}])
def test_pairs_of_the_user_in_the_work_folder_stay(tmp_path, earlier) -> None:
    frame = SimpleNamespace(columns=["question", "answer"])
    mine = tmp_path / "pairs" / "mine.csv"
    mine.parent.mkdir()
    for name, content in {"pairs/mine.csv": "mine", "notes.txt": "mine", **earlier}.items():
        (tmp_path / name).write_text(content)
    columns = ["question", "answer"]
    encoder = SentenceEncoder(pairCols=columns, workFolder=str(tmp_path), settings=SETTINGS)
    with pytest.raises(InputError, match=r"^workFolder: .* holds other files \(pairs"):
        encoder._fit(frame)
    assert mine.read_text() == "mine"


def test_settings_that_a_param_decides_are_refused(tmp_path) -> None:
    decided = {
        "run.folder": "workFolder",
        "corpus.inputs": "workFolder",
        "corpus.format": "workFolder",
        "prepared.folder": "workFolder",
        "corpus.pairs": "pairCols",
        "corpus.triplet_columns": "pairCols",
        "embedding.quantise": "quantise",
        "embedding.text_column": "inputCol",
    }
    for key, param in decided.items():
        section, name = key.split(".")
        encoder = SentenceEncoder(workFolder=str(tmp_path), settings={section: {name: "x"}})
        with pytest.raises(InputError, match=f"^{key}: it follows from {param}. Leave it out"):
            encoder.configuration()
    for nothing in (None, "x"):
        with pytest.raises(InputError, match=f"^run: `{nothing}` holds no settings"):
            SentenceEncoder(workFolder="w", settings={"run": nothing}).configuration()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"outputType": "tensor"}, "outputType: there is no `tensor`. Choose array or vector"),
        ({"outputType": "vector", "quantise": "int8"}, "outputType: a vector holds no int8"),
        ({"promptName": "qeury"}, "promptName: the model has no prompt `qeury`. Choose one of"),
        ({"precision": "fp16"}, "precision: "),
        ({"batchTokens": -1}, "batchTokens: "),
    ],
)
def test_what_the_model_would_refuse_is_refused_before_it_is_trained(
    tmp_path, params, message
) -> None:
    encoder = SentenceEncoder(workFolder=str(tmp_path), settings=SETTINGS, **params)
    with pytest.raises(InputError, match=f"^{message}"):
        encoder.configuration()


def test_the_prompts_of_the_settings_are_known_before_training(tmp_path) -> None:
    prompts = {"encoder": SETTINGS["encoder"] | {"prompts": {"clustering": "topic: "}}}
    encoder = SentenceEncoder(
        workFolder=str(tmp_path), settings=SETTINGS | prompts, promptName="clustering"
    )
    assert encoder.configuration().embedding.prompt_name == "clustering"


@pytest.mark.parametrize("asked", [None, True, False])
def test_a_run_that_is_there_is_kept_where_the_settings_say_so(tmp_path, asked) -> None:
    settings = {} if asked is None else {"run": {"overwrite": asked}}
    found = SentenceEncoder(workFolder=str(tmp_path), settings=settings).configuration()
    assert found.run.overwrite is (asked is not False)
    assert found.run.folder == str(tmp_path / "run")


@pytest.fixture
def elsewhere(spark, tmp_path):
    """A default file system of the cluster that is not the local one: its root is this folder."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    values = {
        "fs.defaultFS": "viewfs://tests/",
        "fs.viewfs.mounttable.tests.linkMergeSlash": f"file://{tmp_path}/elsewhere",
    }
    before = {key: conf.get(key) for key in values}
    for key, value in values.items():
        conf.set(key, value)
    yield tmp_path / "elsewhere"
    for key, value in before.items():
        conf.unset(key) if value is None else conf.set(key, value)


def test_what_is_overwritten_is_on_the_file_system_that_is_written_to(elsewhere, tmp_path) -> None:
    path, model = tmp_path / "saved", tmp_path / "source"
    model.mkdir()
    (model / "modules.json").write_text("[]")
    same_path_there = Path(f"{elsewhere}{path}")
    same_path_there.mkdir(parents=True)
    (same_path_there / "kept").write_text("of somebody else")
    stage = SentenceEncoderModel(modelFolder=str(model))
    stage.save(str(path))
    (model / "modules.json").write_text("[1]")
    stage.write().overwrite().save(str(path))
    assert (path / "model" / "modules.json").read_text() == "[1]"
    assert (same_path_there / "kept").read_text() == "of somebody else"
    again = SentenceEncoderModel.load(str(path))
    assert again.getOrDefault("modelFolder") == str(path / "model")


def test_a_model_is_not_saved_over_itself_or_into_itself(spark, tmp_path, monkeypatch) -> None:
    model = tmp_path / "folder" / "model"
    model.mkdir(parents=True)
    (model / "modules.json").write_text("[]")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    for folder in (str(model), "model"):
        writer = SentenceEncoderModel(modelFolder=folder).write().overwrite()
        for path in (model, tmp_path / "folder", tmp_path / "link", tmp_path / "link" / "model"):
            with pytest.raises(InputError, match=r"^modelFolder: it is in .*\. Save to another"):
                writer.save(str(path))
        for path in (model / "saved", tmp_path / "link" / "model" / "a" / "b"):
            with pytest.raises(InputError, match=r"^path: .* is in the modelFolder\. Save to"):
                writer.save(str(path))
    assert [path.name for path in model.iterdir()] == ["modules.json"]


def test_a_save_that_fails_leaves_what_was_there(spark, tmp_path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "modules.json").write_text("[]")
    stage = SentenceEncoderModel(modelFolder=str(model))
    stage.save(str(tmp_path / "saved"))
    (model / "modules.json").write_text("[1]")
    with pytest.raises((Py4JJavaError, AnalysisException), match="already exists"):
        stage.save(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model" / "modules.json").read_text() == "[]"
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["metadata", "model"]


def test_params_are_those_of_spark(small_params=("inputCol", "outputCol", "dimensions")) -> None:
    model = SentenceEncoderModel(modelFolder="/m", inputCol="a", dimensions=8)
    copied = model.copy({model.outputCol: "b"})
    assert [copied.getOrDefault(name) for name in small_params] == ["a", "b", 8]
    assert "dimensions: leading values of an embedding to keep" in model.explainParams()
    with pytest.raises(TypeError, match="SentenceEncoder has no Param inputColumn"):
        SentenceEncoder(inputColumn="a")
