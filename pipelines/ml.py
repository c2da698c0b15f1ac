"""Sentence encoders as stages of a `pyspark.ml` pipeline.

    encoder = SentenceEncoder(pairCols=["question", "answer"], workFolder="/shared/work")
    model = Pipeline(stages=[encoder]).fit(pairs)
    model.transform(texts)

Params are named as in `pyspark.ml`, without underscores.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.ml.util import (
    DefaultParamsReadable,
    DefaultParamsReader,
    DefaultParamsWritable,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from pipelines.corpus.readers.inputs import local_path
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import location
from pipelines.files.ownership import FITTED, check_free
from pipelines.jobs.prepare import prepare
from pipelines.jobs.train import train
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.settings.yaml_file import (
    RepeatedKeyError,
    UnusableYamlError,
    parse_yaml,
    read_text,
)
from pipelines.spark.frames import write_parquet, write_path
from pipelines.tokens.start import configured_prompts
from pipelines.vectors.column import embed_column

__all__ = ["SentenceEncoder", "SentenceEncoderModel"]

ARRAY, VECTOR = "array", "vector"
"""Values of `outputType`."""
_MODEL = "model"
_EMBEDDING = {
    "backend": "backend",
    "precision": "precision",
    "batch_tokens": "batchTokens",
    "prompt_name": "promptName",
    "dimensions": "dimensions",
    "quantise": "quantise",
}
"""Params, by the key of the section `embedding` that they set."""
_DECIDED = {
    "corpus": {
        "inputs": "workFolder",
        "format": "workFolder",
        "pairs": "pairCols",
        "pair_columns": "pairCols",
        "triplet_columns": "pairCols",
        "sources": "pairCols",
    },
    "prepared": {"folder": "workFolder"},
    "run": {"folder": "workFolder"},
    "embedding": {"text_column": "inputCol", "output_column": "outputCol", **_EMBEDDING},
}
"""By section: the keys that a Param sets, and that Param."""


class EmbeddingKeywords(TypedDict, total=False):
    """The Params of a transformation, as keywords."""

    inputCol: str | None
    outputCol: str | None
    backend: str | None
    precision: str | None
    batchTokens: int | None
    dimensions: int | None
    quantise: str | None
    promptName: str | None
    outputType: str | None


class ModelKeywords(EmbeddingKeywords, total=False):
    """The Params of :class:`SentenceEncoderModel`, as keywords."""

    modelFolder: str | None


class EncoderKeywords(EmbeddingKeywords, total=False):
    """The Params of :class:`SentenceEncoder`, as keywords."""

    pairCols: list[str] | None
    workFolder: str | None
    settings: Mapping[str, Any] | str | None


def _param(name: str, meaning: str, kind: Callable[[Any], Any] = TypeConverters.toString) -> Param:
    return Param(Params._dummy(), name, meaning, kind)


class EmbeddingParams(HasInputCol, HasOutputCol):  # type: ignore[misc] # pyspark.ml is untyped
    """The Params of how texts are embedded, of estimator and model."""

    backend = _param("backend", "the backend: auto, torch, openvino or tensorflow")
    precision = _param("precision", "of the matrix products: auto, fp32 or bf16")
    batchTokens = _param(  # noqa: N815
        "batchTokens", "tokens of one forward pass; 0: chosen automatically", TypeConverters.toInt
    )
    dimensions = _param(
        "dimensions", "leading values of an embedding to keep; 0: all", TypeConverters.toInt
    )
    quantise = _param("quantise", "none, or int8 with a scale column")
    promptName = _param(  # noqa: N815
        "promptName", "the model's prompt to put before each text; empty: its default, if any"
    )
    outputType = _param(  # noqa: N815
        "outputType", "array of numbers, or vector, which many stages of pyspark.ml need"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            inputCol="text",
            outputCol="embedding",
            backend="auto",
            precision="auto",
            batchTokens=0,
            dimensions=0,
            quantise="none",
            promptName="",
            outputType=ARRAY,
        )

    def _set_given(self, given: Mapping[str, Any]) -> None:
        """Set all Params but those of None; refuse unknown names with a TypeError."""
        unknown = given.keys() - {param.name for param in self.params}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no Param {', '.join(sorted(unknown))}")
        self._set(**{name: value for name, value in given.items() if value is not None})

    def _output_type(self) -> str:
        """Return the value of `outputType`; refuse a type without room for quantised vectors."""
        kind: str = self.getOrDefault(self.outputType)
        if kind not in (ARRAY, VECTOR):
            raise InputError("outputType", f"there is no `{kind}`", f"Choose {ARRAY} or {VECTOR}")
        if kind == VECTOR and self.getOrDefault(self.quantise) != "none":
            raise InputError(
                "outputType",
                f"a {VECTOR} holds no int8",
                f"Choose {ARRAY}, or set quantise to none",
            )
        return kind

    def _embedding_settings(self) -> dict[str, Any]:
        """Return the Params' keys of the section `embedding`."""
        # Params cannot be None: 0 and the empty text stand for it.
        return {key: self.getOrDefault(param) or None for key, param in _EMBEDDING.items()}


class SentenceEncoderModel(Model, EmbeddingParams, MLReadable, MLWritable):  # type: ignore[misc]
    """A transformer: it adds a column of vectors.

    :func:`pipelines.vectors.column.embed_column` does the work.

    Params: `modelFolder` (a sentence-transformers folder), `inputCol`, `outputCol`, `backend`,
    `precision`, `batchTokens`, `dimensions`, `quantise`, `promptName`, `outputType` (`array`, or
    `vector` for stages such as `LogisticRegression`).

    A saved model holds a copy of the folder, so driver and executors must see its path. A path
    without a scheme is a local path here, never one of the default file system. Other stages and
    pipelines use the default file system: name theirs with `file://`.
    """

    modelFolder = _param("modelFolder", "a sentence-transformers folder")  # noqa: N815

    def __init__(self, **params: Unpack[ModelKeywords]) -> None:
        super().__init__()
        self._set_given(params)

    def setParams(self, **params: Unpack[ModelKeywords]) -> SentenceEncoderModel:  # noqa: N802
        """Set the given Params."""
        self._set_given(params)
        return self

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if not self.isDefined(self.modelFolder):
            raise InputError("modelFolder", "it is not set", "Name a sentence-transformers folder")
        output, kind = self.getOutputCol(), self._output_type()
        embedded = embed_column(
            dataset,
            self.getOrDefault(self.modelFolder),
            text_column=self.getInputCol(),
            output_column=output,
            **self._embedding_settings(),
        )
        return embedded.withColumn(output, _vectors(output)) if kind == VECTOR else embedded

    def write(self) -> MLWriter:
        """Return a writer of the Params and the model folder."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader:
        """Return a reader for the files of :meth:`write`."""
        return _ModelReader(cls)


class _ModelWriter(MLWriter):  # type: ignore[misc]
    """Writes Params as `pyspark.ml` does, and a copy of the model folder."""

    def __init__(self, model: SentenceEncoderModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Write the model; refuse to overwrite its own folder.

        Raises:
            InputError: It would be overwritten or is missing, or the path is on no file system.
        """
        source, home = self._source(), _local(path)
        if not source.is_dir():
            raise InputError("modelFolder", f"there is no folder {source}", "Name an existing one")
        if source.resolve().is_relative_to(home.resolve()):
            raise InputError("modelFolder", f"it is in {home}", "Save to another path")
        if home.resolve().is_relative_to(source.resolve()):
            raise InputError("path", f"{home} is in the modelFolder", "Save to another path")
        # With a scheme, since Spark would delete on its default file system otherwise.
        super().save(write_path(home))

    def saveImpl(self, path: str) -> None:  # noqa: N802
        """Write the folder, and the metadata last, as a sign of a whole copy; for :meth:`save`."""
        with storage.built_folder(_local(path) / _MODEL) as aside:
            shutil.copytree(self._source(), aside, dirs_exist_ok=True)
            DefaultParamsWriter.saveMetadata(self._model, path, self.sc)

    def _source(self) -> Path:
        named = location(self._model.getOrDefault(self._model.modelFolder))
        return local_folder(named.expanduser().absolute())


class _ModelReader(MLReader):  # type: ignore[misc]
    """Reads the files of :class:`_ModelWriter`."""

    def __init__(self, kind: type[SentenceEncoderModel]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> SentenceEncoderModel:
        """Return the model; its folder is the copy."""
        home = _local(path)
        metadata = DefaultParamsReader.loadMetadata(write_path(home), self.sc)
        model = self._kind()
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model._set(modelFolder=str(home / _MODEL))


class SentenceEncoder(Estimator, EmbeddingParams, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """An estimator: it trains a sentence encoder on a frame's pairs; its model embeds.

    Params: `pairCols` (two columns of related texts, or more: text, partner, hard negatives),
    `workFolder` (for the pairs, the prepared lanes and the run; the driver and every executor see
    it), `settings` (a dict, YAML text or YAML file of further settings, as in
    docs/reference/settings.md), and all of :class:`SentenceEncoderModel` for the resulting model.
    `corpus.group_column`, `corpus.score_column` and `corpus.score_columns` name columns of the
    frame; `settings` must not repeat a Param. A new run overwrites an existing one in the folder,
    unless `run.overwrite` is false or `training.resume` is true. Without `inputCol`, the model
    embeds the first of the `pairCols`.
    """

    pairCols = _param("pairCols", "two or more text columns", TypeConverters.toListString)  # noqa: N815
    workFolder = _param("workFolder", "folder for lanes and run")  # noqa: N815
    settings = _param("settings", "settings on top, as JSON")

    def __init__(self, **params: Unpack[EncoderKeywords]) -> None:
        super().__init__()
        self._setDefault(pairCols=["sentence1", "sentence2"], settings="{}")
        self.setParams(**params)

    def setParams(self, **params: Unpack[EncoderKeywords]) -> SentenceEncoder:  # noqa: N802
        """Set the given Params."""
        given = dict(params)
        if (settings := params.get("settings")) is not None:
            given["settings"] = json.dumps(_tree(settings))
        self._set_given(given)
        return self

    def configuration(self) -> Config:
        """Return the complete configuration of :meth:`fit`.

        Raises:
            InputError: A Param or a setting is wrong, or `workFolder` is not set.
        """
        if not self.isDefined(self.workFolder):
            raise InputError("workFolder", "it is not set", "Name a folder that executors see")
        columns = self.getOrDefault(self.pairCols)
        if len(columns) < 2:
            raise InputError(
                "pairCols",
                f"{len(columns)} columns make no pairs",
                "Name two, and one more for each hard negative",
            )
        work = location(self.getOrDefault(self.workFolder)).absolute()
        tree: dict[str, Any] = json.loads(self.getOrDefault(self.settings))
        _check_free(tree)
        pairs = ("columns", "pair_columns")
        kind, key = pairs if len(columns) == 2 else ("triplets", "triplet_columns")
        decided = {
            "corpus": {
                "inputs": [str(work / "pairs")],
                "format": "parquet",
                "pairs": kind,
                key: columns,
            },
            "prepared": {"folder": str(work / "prepared")},
            "run": {"folder": str(work / "run")},
            "embedding": self._embedding_settings(),
        }
        merged = {name: tree.get(name, {}) | section for name, section in decided.items()}
        merged["run"] = {"overwrite": True} | merged["run"]
        # Raised now, since the resulting model would raise it after hours of training.
        self._output_type()
        try:
            config = parse(tree | merged)
        except InputError as error:
            section, _, name = error.key.partition(".")
            param = _DECIDED["embedding"].get(name) if section == "embedding" else None
            raise InputError(param or error.key, error.problem, error.remedy) from None
        if config.embedding.prompt_name is not None:
            configured_prompts(config).before(config.embedding.prompt_name, "promptName")
        return config

    def _fit(self, dataset: DataFrame) -> SentenceEncoderModel:
        settings = self.configuration()
        columns = self.getOrDefault(self.pairCols)
        named = [("pairCols", name) for name in columns]
        named += [
            (f"corpus.{key}", name)
            for key in ("group_column", "score_column")
            if (name := getattr(settings.corpus, key)) is not None
        ]
        named += [("corpus.score_columns", name) for name in settings.corpus.score_columns]
        for key, name in named:
            if name not in dataset.columns:
                known = ", ".join(dataset.columns)
                raise InputError(key, f"the frame has no column `{name}`", f"Choose one of {known}")
        used = dict.fromkeys(name for _, name in named)
        rows = location(settings.corpus.inputs[0], settings.storage)
        check_free("workFolder", rows.parent, FITTED)
        storage.write_json(rows.parent / "pairs.json", {"columns": list(used)})
        storage.discard_folder(rows)
        write_parquet(dataset.select(*used), rows)
        prepare(settings)
        folder = train(settings)
        model = SentenceEncoderModel(modelFolder=str(folder))
        self._copyValues(model)
        if not self.isSet(self.inputCol):
            model._set(inputCol=columns[0])
        return model


def _vectors(column: str) -> Column:
    """Return a column of arrays as dense vectors; nulls stay null."""
    arrays = F.col(column)
    return F.when(arrays.isNotNull(), array_to_vector(arrays))


def _tree(settings: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return settings as a nested mapping, from a mapping, YAML text or a YAML file."""
    if isinstance(settings, str):
        is_file = "\n" not in settings and Path(settings).is_file()
        text = read_text(settings) if is_file else settings
        try:
            settings = parse_yaml(text) or {}
        except RepeatedKeyError as error:
            first, again = error.lines
            problem = f"lines {first} and {again} both set `{error.key}`"
            raise InputError("settings", problem, "Keep one of them") from None
        except UnusableYamlError:
            settings = text
    if not isinstance(settings, Mapping):
        raise InputError("settings", f"`{settings}` holds no settings", "Pass a dict, or YAML")
    return dict(settings)


def _check_free(tree: Mapping[str, Any]) -> None:
    """Refuse settings already set by a Param, and sections without keys."""
    for section, decided in _DECIDED.items():
        given = tree.get(section, {})
        if not isinstance(given, Mapping):
            raise InputError(section, f"`{given}` holds no settings", "Pass a section of keys")
        for key, param in decided.items():
            if key in given:
                raise InputError(f"{section}.{key}", f"it follows from {param}", "Leave it out")


def _local(path: str) -> Path:
    """Return a path on a mounted file system; refuse addresses."""
    return Path(local_path(path, "path")).absolute()
