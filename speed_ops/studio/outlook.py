"""What a user should know before the long work begins."""

from __future__ import annotations

from ..pipeline import Job
from ..text.retain import drop_targets
from .model_source import ModelSource
from .reading import Reading

MANY_TEXTS = 300
"""So many texts are worth a warning where each is encoded whole by an encoder of billions of parameters."""


def missing_encoders(source: ModelSource, reading: Reading) -> list[str]:
    """A sentence where the family can do without an encoder, and does here."""
    missing = source.encoder_files(reading.text_encoders).missing
    if not missing:
        return []
    titles = " and ".join(f"no {row.title}" for row in missing)
    return [
        f"N{titles[1:]} {'were' if len(missing) > 1 else 'was'} found (--text-encoder PATH): text is encoded without, "
        "as ComfyUI does then, and what is said of the result holds for prompts encoded so."
    ]


def outlook(source: ModelSource, job: Job, reading: Reading) -> list[str]:
    """What is missing, and how much text a slow encoder will have to read."""
    found = missing_encoders(source, reading)
    files = source.encoder_files(reading.text_encoders)
    slow = [row.title for row in files.found if not row.causal]
    count = _texts(job)
    if slow and count > MANY_TEXTS:
        once = "" if reading.cache is None else ", the first time (they are then cached)"
        found.append(
            f"Up to {count} texts are encoded by {slow[0]} at full length, which takes hours on a CPU{once}: "
            "`erase --retain-limit N` makes them fewer."
        )
    return found


def _texts(job: Job) -> int:
    """At most so many prompts: retain names, the most endangered of them in context, the concepts and their anchors."""
    plan, names = job.plan, len(drop_targets(job.retain, job.concepts)[0].names)
    phrases = sum(len(concept.phrases) + 1 for concept in job.concepts)
    around = min(names, job.settings.context_names) * (1 + plan.retain_templates) if plan.rows == "context" else 0
    return names + around + phrases * (1 + plan.templates + plan.probe_templates)
