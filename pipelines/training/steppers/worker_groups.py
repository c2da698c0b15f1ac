"""The groups that exchange with one another where several workers hold the encoder together.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as processes

from pipelines.models.frameworks.torch_division import Members
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.agreement import check_agreement
from pipelines.training.collectives.process_group import GroupCollectives
from pipelines.training.steppers.own_part import name_of


class WorkerGroups(NamedTuple):
    """A worker's groups; see :mod:`pipelines.settings.training`.

    Attributes:
        members: Those of its stage, in its replica.
        stages: Those of its replica that hold the same part of matrices.
        copies: Those that hold the same part of the encoder, one of each replica.
    """

    members: Members
    stages: Members
    copies: GroupCollectives


def worker_groups(task: WorkerTask, device: torch.device) -> WorkerGroups:
    """Makes the groups of all workers, which call it at once; returns this worker's.

    Args:
        device: Where the worker computes.
    """
    placement, seconds = task.placement, task.run.config.training.stall_seconds
    members, stages, copies = (
        _group([ranks_of(rank) for rank in range(task.workers)], seconds)
        for ranks_of in (placement.member_ranks, placement.stage_ranks, placement.copy_ranks)
    )
    return WorkerGroups(Members(members), Members(stages), GroupCollectives(device, copies))


def check_members(
    own: Checkpoint, divided: Container[str], members: Members, device: torch.device
) -> None:
    """Compares what each member has as a whole; all members call it, after a step.

    Args:
        own: The worker's own state, or its part of it where replicas share it out.
        divided: Names of the weights that members have parts of.
        members: The worker's.
        device: From which they exchange.

    Raises:
        RuntimeError: They differ; see :func:`.agreement.check_agreement`.
    """
    weights, moments = (
        {key: arrays[key] for key in arrays if name_of(key) not in divided}
        for arrays in (own.weights, own.moments)
    )
    if members.size > 1 and weights:
        group = GroupCollectives(device, members.group)
        check_agreement(replace(own, weights=weights, moments=moments), group, "tensor ranks")


def _group(all_ranks: Sequence[Sequence[int]], seconds: float) -> Any:
    """This worker's group of some that all workers are divided into.

    Args:
        all_ranks: Of each worker, its group.
        seconds: The deadline of an exchange.
    """
    groups = list(dict.fromkeys(tuple(ranks) for ranks in all_ranks))
    own, _ = processes.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=seconds))
    return own
