"""`prepare`: text in, lanes out."""

from __future__ import annotations

from pipelines import progress
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.base import Results, job, say_report
from pipelines.jobs.stages import check_prepared_folder, prepare_stages, shown_stages
from pipelines.lanes.files import LaneManifest
from pipelines.settings import Config


@job("preparing", works_in=("prepared.folder",), check=check_prepared_folder, stalls=True)
def prepare(config: Config, *, trains: bool = True) -> LaneManifest:
    """Read the corpus, tokenise it, and form the lanes in `prepared.folder`.

    A stage whose inputs and settings have not changed is kept, unless `prepared.reuse` is false.

    Args:
        config: The settings.
        trains: Whether this process may train afterwards. If not, and there is no Spark session
            yet, a smaller one is started.
    """
    with progress.job("preparing", shown_stages(config)):
        return prepare_stages(config, trains=trains)


def command(config: Config) -> Results:
    """Prepare a corpus, and print where its report is."""
    manifest = prepare(config, trains=False)
    say_report(PreparedFolder.of(config).report)
    return {"examples": manifest.examples, "tokens": manifest.tokens, "lanes": manifest.digest}
