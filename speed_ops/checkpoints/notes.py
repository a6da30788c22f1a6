"""What a user should know about a model and a job before the long work."""

from __future__ import annotations

from ..errors import Notice
from ..inputs import INPUT_TITLES, POOLED
from ..job import Job
from ..text.retain_set import drop_targets
from .source import ModelSource
from .text_setup import TextSetup

MANY_TEXTS = 300
"""More texts than this are worth a warning where an encoder of billions of parameters reads each of
them at full length.
"""


def before_starting(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """What a user should know before the long work: what is missing, and how much text a slow
    encoder has to read.

    Args:
        source: The model.
        job: What to erase.
        text: How text becomes embeddings.
    """
    notes = [*missing_encoders(source, text), *unread_inputs(source, job, text)]
    encoders = source.encoder_files(text.text_encoders).available
    slow = [encoder.title for encoder in encoders if not encoder.causal]
    count = _max_texts(job)
    if slow and count > MANY_TEXTS:
        once = "" if text.cache is None else " the first time (then they are cached)"
        advice = "keep-fewer-names" if job.settings.effort == "quick" else "less-effort"
        notes.append(
            Notice(
                f"{slow[0]} encodes up to {count} texts at full length, which takes hours on a"
                f" CPU{once}.",
                advice=advice,
            )
        )
    return notes


def missing_encoders(source: ModelSource, text: TextSetup) -> list[str]:
    """A sentence where the family can do without an encoder, and does here."""
    missing = source.encoder_files(text.text_encoders).missing
    if not missing:
        return []
    titles = " and ".join(f"no {encoder.title}" for encoder in missing)
    were, pronoun = ("were", "them") if len(missing) > 1 else ("was", "it")
    return [
        Notice(
            f"N{titles[1:]} {were} found. Text is encoded without {pronoun}, as ComfyUI would do;"
            f" the result applies only to prompts encoded without {pronoun}.",
            advice="give-text-encoder",
        )
    ]


def unread_inputs(source: ModelSource, job: Job, text: TextSetup) -> list[str]:
    """A sentence for each text input of the model that no encoder here can encode: its layer then
    stays as it is.

    Args:
        source: The model.
        job: What to erase.
        text: How text becomes embeddings.
    """
    second, name = source.architecture.second_input, POOLED
    readable = text.encoder(source).width_of(name) > 0
    if second is None or not job.settings.edits_input(name) or readable:
        return []
    available = source.encoder_files(text.text_encoders).second
    if available:  # a diffusers folder without the last blocks, which the rows do without
        reason = f"{' and '.join(encoder.title for encoder in available)} lacks its last layers"
        reason = f"{reason} here"
    else:
        reason = f"no {' or '.join(encoder.title for encoder in second.encoders)} was found"
    return [
        Notice(
            f"{INPUT_TITLES[name]} stays unedited, because {reason}.", advice="give-text-encoder"
        )
    ]


def _max_texts(job: Job) -> int:
    """Upper bound on the prompts to encode: kept names, the most endangered of them in context, the
    concepts and their anchors.
    """
    plan, usable = job.plan, len(drop_targets(job.retain, job.concepts)[0].names)
    names = min(plan.considered, usable)
    phrases = sum(len(concept.phrases) + 1 for concept in job.concepts)
    each = 1 + plan.templates + plan.probe_templates + plan.trial_templates
    return names + plan.prompts(names, job.settings.context_names) + phrases * each
