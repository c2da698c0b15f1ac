"""`export`: writes a model in the form of another runtime."""

from __future__ import annotations

from pipelines.errors import InputError
from pipelines.exports.stage import LEAST_INT8, Exported, check_export, export_model
from pipelines.files import versions
from pipelines.files.locations import Location, location
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.base import Results, job
from pipelines.progress import activity, say
from pipelines.promotion.stage import model_in_service
from pipelines.settings import Config
from pipelines.tokens.start import default_start, teacher_folder

OF_DOCUMENTS = "--documents"
DEFAULT = "default"
"""The name of the packaged start."""


@job("the export")
def export(
    config: Config,
    to: str,
    *,
    model: str | None = None,
    served: bool = False,
    documents: str | None = None,
    output: str | None = None,
    int8: bool = False,
    least_cosine: float | None = None,
) -> Exported:
    """Write a model for the runtime `to`, a name of :data:`pipelines.catalog.EXPORTS`.

    It appears only if its vectors are the model's, on texts of the prepared corpus or, without one,
    of Python's documentation. Starts no Spark.

    Args:
        model: A model folder, or `default` for the packaged start. None: that of `run.folder`.
        served: Take the model in service in `promotion.target` instead.
        documents: The model of documents, for `router`; None: `teacher.model`.
        output: The folder to write; None: `model-` and the format, in the working folder. An
            earlier export there is replaced.
        int8: Write the weights in int8 too.
        least_cosine: The least cosine of int8 vectors with the model's; None: 0.95.

    Raises:
        InputError: There is no such model or form of it, its library is missing, the folder holds
            other files, or int8 moves a vector too far.
        PipelineError: The vectors differ.
    """
    if served and model is not None:
        raise InputError("--model", "--served names a model too", "Leave one of the two out")
    target = location(output or f"model-{to}", config.storage).expanduser().absolute()
    form = check_export(to, target, int8=int8)
    if documents is not None and not form.is_pair:
        problem = f"`{to}` holds one model"
        raise InputError(OF_DOCUMENTS, problem, "Leave it out, or export to router")
    with activity("exporting"):
        folder = _folder(config, model, served=served)
        second = _documents(config, documents) if form.is_pair else None
        try:
            return export_model(
                config,
                folder,
                target,
                to,
                documents=second,
                int8=int8,
                least_int8=LEAST_INT8 if least_cosine is None else least_cosine,
            )
        except InputError as error:
            if error.key != OF_DOCUMENTS or documents is not None:
                raise
            raise InputError("teacher.model", error.problem, error.remedy) from None


def _folder(config: Config, model: str | None, *, served: bool) -> Location:
    """Return the folder of the asked model."""
    if served:
        return model_in_service(config)
    if model == DEFAULT:
        return default_start("--model")
    if model is None:
        folder, key, remedy = RunFolder.of(config).model, "run.folder", "Train one, or set --model"
    else:
        folder = location(model, config.storage).expanduser().absolute()
        key, remedy = "--model", "Name a model folder, or `default`"
    folder = versions.current(folder)
    if not folder.is_dir():
        raise InputError(key, f"there is no model in {folder}", remedy)
    return folder


def _documents(config: Config, named: str | None) -> Location:
    """Return the folder of the model of documents, the teacher by default."""
    if named is None and config.teacher.model is None:
        problem = "a Router holds a model for documents, too"
        raise InputError(OF_DOCUMENTS, problem, "Name it, or set teacher.model")
    if named == DEFAULT:
        return default_start(OF_DOCUMENTS)
    if named is None:
        folder, key = teacher_folder(config), "teacher.model"
    else:
        folder, key = location(named, config.storage).expanduser().absolute(), OF_DOCUMENTS
    folder = versions.current(folder)
    if not folder.is_dir():
        raise InputError(key, f"there is no model in {folder}", "Name a model folder")
    return folder


def command(
    config: Config,
    to: str,
    model: str | None,
    documents: str | None,
    output: str | None,
    least_cosine: float | None,
    *,
    served: bool,
    int8: bool,
) -> Results:
    """Export a model, and print its folder and the comparison."""
    made = export(
        config,
        to,
        model=model,
        served=served,
        documents=documents,
        output=output,
        int8=int8,
        least_cosine=least_cosine,
    )
    for file, facts in made.files.items():
        least, mean = facts["least_cosine"], facts["mean_cosine"]
        size = f"{facts['bytes'] / 1e6:.1f} MB"
        say(f"{facts['precision']}    {file}, {size}: least cosine {least:.6f}, mean {mean:.6f}")
    fewest, most = made.lengths
    say(f"checked {made.texts}, {fewest} to {most:,} tokens, in batches of 1, 3 and 64")
    for note in made.notes:
        say(f"note    {note}")
    say(f"export  {made.folder}")
    return {"folder": str(made.folder), "files": made.files}
