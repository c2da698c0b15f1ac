"""What is trained: the encoder, and the loss of each granule, one granule after another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.catalog import LOSSES
from pipelines.models.frameworks.dllib import Graph, encoder_nodes, graph_of, quiet
from pipelines.models.spec import EncoderSpec
from pipelines.quiet import quiet_import
from pipelines.runs.run import TrainingRun

with quiet_import():
    from bigdl.dllib.nn import layer as dllib

if TYPE_CHECKING:
    from pyspark import SparkContext


def training_graph(context: SparkContext, spec: EncoderSpec, run: TrainingRun) -> tuple[Graph, Any]:
    """Builds the graph in the driver's JVM.

    Args:
        context: With dllib on the class path.
        run: Says what is minimised.

    Returns:
        A module from token ids, lengths and targets of any number of granules to their mean loss,
        with the encoder's weights, and dllib's criterion for it.
    """
    objective, examples = run.config.objective, run.manifest.granule
    sides = len(run.sides)
    with quiet(context):
        nodes = encoder_nodes(context, spec)
        units = nodes.embeddings if spec.normalise else dllib.Normalize(2.0)(nodes.embeddings)
        granules = dllib.InferReshape([-1, sides * examples, spec.embedding_width])(units)
        each = [
            dllib.Narrow(2, 1 + number * examples, examples)(granules) for number in range(sides)
        ]
        form = LOSSES.load(objective.name).form("bigdl")
        output, criterion = form(each, examples, objective)
        graph = graph_of(context, spec, nodes, output)
    classes = graph.classes
    losses = classes.GranuleLosses(graph.model, criterion.value, sides * examples)
    return replace(graph, model=losses), classes.MeanLoss()
