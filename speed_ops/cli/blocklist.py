"""`--blocklist FILE@sha256:...`: a list of concepts in exactly one version."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import FileError, UsageError
from ..recipe import StoredJob
from ..text.concept_list import ConceptList, read_concepts
from ..text.names import list_label

_PINNED = re.compile(r"(?P<file>.+)@sha256:(?P<digest>[0-9a-f]{64})")


_HELP = "a concept list in this version only; its name and digest are recorded; repeatable"


def add_blocklist(parser: Any, help: str = _HELP) -> None:
    """The flag that `blocked_by` reads."""
    parser.add_argument(
        "--blocklist", action="append", default=[], metavar="FILE@sha256:DIGEST", help=help
    )


def blocked_by(args: Namespace, kind: str = "style") -> tuple[ConceptList, tuple[str, ...]]:
    """The concepts of every block list, and what the recipe records about the lists.

    Args:
        args: The flags.
        kind: Type of the lines that set none.
    """
    total, labels = ConceptList(()), []
    for text in args.blocklist:
        from ..files.checkpoint import file_hash

        match = _PINNED.fullmatch(text)
        if match is None:
            raise UsageError(f"--blocklist is {text[:200]!r}. Write FILE@sha256:DIGEST.")
        file, digest = Path(match["file"]), match["digest"]
        if (found := file_hash(file)) != digest:
            raise FileError(f"{file} is another version of this block list: its sha256 is {found}.")
        total = total + read_concepts(file, kind)
        labels.append(f"{list_label(file)}@sha256:{digest}")
    return total, tuple(labels)


def with_blocklists(stored: StoredJob, args: Namespace) -> StoredJob:
    """A recipe's job that also erases what the block lists name."""
    blocked, labels = blocked_by(args)
    if not labels:
        return stored
    job = stored.job
    names = {name.casefold() for concept in job.concepts for name in concept.phrases}
    more = [concept for concept in blocked if concept.target.casefold() not in names]
    concepts = ConceptList((*job.concepts, *more))
    both = replace(job, concepts=tuple(concepts), blocklists=(*job.blocklists, *labels))
    return replace(stored, job=both)
