"""A model file cleaned: encoder and weights from the file, the shared pipeline, and all that saving needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..certificate import Certificate
from ..erase import Progress
from ..erasure import Erasure, LayerEdit
from ..files.recipe import Recipe
from ..forecast import Forecast
from ..pipeline import Job, Outcome, erase_model, predict
from ..recipe_job import recipe_of
from ..remeasure import certificate_at
from .model_source import ModelSource
from .reading import Reading


@dataclass(frozen=True)
class Cleaned:
    """An erasure of one model file, not yet saved."""

    source: ModelSource
    erasure: Erasure
    """At the strength that was asked for, its certificate measured at that strength."""
    outcome: Outcome
    recipe: Recipe

    @property
    def edits(self) -> dict[str, LayerEdit]:
        return self.erasure.edits

    @property
    def certificate(self) -> Certificate:
        return self.erasure.certificate

    def text(self) -> str:
        """The report for people."""
        return replace(self.outcome, erasure=self.erasure).text()


def clean(
    source: ModelSource, job: Job, reading: Reading, strength: float = 1.0, progress: Progress | None = None
) -> Cleaned:
    """Solves a job for a model file. Nothing is written."""
    weights = source.weights(job.settings.layers)
    outcome = erase_model(reading.encoder(source), weights, job, progress=progress)
    certificate = certificate_at(strength, weights, outcome.erasure, outcome.gathered, progress)
    erasure = outcome.erasure if strength == 1 else outcome.erasure.scaled(strength)
    recipe = recipe_of(
        job,
        strength=strength,
        clip_skip=reading.clip_skip,
        family=source.architecture.name,
        base_hash=source.base_hash(progress),
        encoder_hash=reading.encoder_hash(source),
    )
    return Cleaned(source, replace(erasure, certificate=certificate), outcome, recipe)


def foresee(source: ModelSource, job: Job, reading: Reading, progress: Progress | None = None) -> Forecast:
    """The blast radius of a job on a model file."""
    return predict(reading.encoder(source), source.weights(job.settings.layers), job, progress)
