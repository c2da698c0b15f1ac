"""Encoders as stages of `pyspark.ml` pipelines: trained, saved, loaded."""

from pathlib import Path

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import SQLTransformer

from pipelines.encoder.inference import load_embedder
from pipelines.errors import InputError
from pipelines.ml import SentenceEncoder, SentenceEncoderModel

SETTINGS = {
    "corpus": {"evaluation_share": 0, "min_characters": 3},
    "tokens": {"max_length": 16, "vocabulary": "train", "vocabulary_size": 400},
    "lanes": {"count": 2, "granule": 8},
    "encoder": {"start": "random", "layers": 1, "hidden": 16, "heads": 2},
    "training": {"engine": "local", "framework": "torch", "workers": 1, "max_steps": 4},
}


@pytest.fixture(scope="module")
def pairs(spark):
    animals = ("cat", "dog", "horse", "sparrow", "salmon", "frog", "bee", "whale")
    places = ("in the house", "near the river", "on a hill", "under a tree", "at night", "alone")
    rows = [(f"the {a} sleeps {p}", f"a sleeping {a} {p}") for a in animals for p in places]
    return spark.createDataFrame(rows, "question string, answer string")


def vectors(frame):
    rows = frame.orderBy("question").collect()
    return [row["question"] for row in rows], np.array([row["vector"] for row in rows])


def test_a_pipeline_is_fitted_saved_and_loaded(spark, pairs, tmp_path) -> None:
    cut = SQLTransformer(statement="SELECT * FROM __THIS__ WHERE question LIKE 'the %'")
    encoder = SentenceEncoder(
        pairCols=["question", "answer"],
        workFolder=str(tmp_path / "work"),
        settings=SETTINGS,
        outputCol="vector",
        precision="fp32",
    )
    Pipeline(stages=[cut, encoder]).save(str(tmp_path / "unfitted"))
    fitted = Pipeline.load(str(tmp_path / "unfitted")).fit(pairs)
    texts, expected = vectors(fitted.transform(pairs))
    assert expected.shape == (48, 16)
    own = load_embedder(tmp_path / "work" / "run" / "model")(texts)
    np.testing.assert_allclose(expected, own, atol=1e-5)

    fitted.save(str(tmp_path / "fitted"))
    (tmp_path / "work").rename(tmp_path / "moved")
    again = PipelineModel.load(str(tmp_path / "fitted"))
    assert isinstance(again.stages[1], SentenceEncoderModel)
    assert again.stages[1].uid == fitted.stages[1].uid
    np.testing.assert_allclose(vectors(again.transform(pairs))[1], expected, atol=1e-6)
    with pytest.raises(Py4JJavaError, match="already exists"):
        again.save(str(tmp_path / "fitted"))
    again.write().overwrite().save(str(tmp_path / "other"))
    own = again.stages[1]
    with pytest.raises(InputError, match=r"^modelFolder: it is in .*, save to another path"):
        own.write().overwrite().save(str(Path(own.getOrDefault("modelFolder")).parent))


def test_params_that_do_not_fit_are_refused(spark, pairs, tmp_path) -> None:
    work = str(tmp_path / "work")
    cases = [
        ({"settings": SETTINGS}, "workFolder: it is not set"),
        ({"workFolder": work, "pairCols": ["question"]}, "pairCols: 1 columns"),
        ({"workFolder": work}, "pairCols: the frame has no column `sentence1`"),
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


def test_params_are_those_of_spark(small_params=("inputCol", "outputCol", "dimensions")) -> None:
    model = SentenceEncoderModel(modelFolder="/m", inputCol="a", dimensions=8)
    copied = model.copy({model.outputCol: "b"})
    assert [copied.getOrDefault(name) for name in small_params] == ["a", "b", 8]
    assert "dimensions: values of an embedding to keep" in model.explainParams()
