"""Setups: what is drawn, in which numbers, and which lists are read from where the user has
them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import pytest

from speed_erase.speed_ops.errors import FileError, InputError, UsageError
from speed_erase.speed_ops.evaluate.setup import (
    OWN_CAPTIONS,
    available,
    setup_of_concepts,
    setup_of_file,
    setup_of_paper,
)
from speed_erase.speed_ops.text.concept_list import parse_concepts


def test_every_setup_can_be_drawn_and_has_a_figure_for_every_column():
    assert len(available()) == 27
    for name in available():
        setup = setup_of_paper(name, {})
        assert setup.table is not None and setup.specs and setup.notes
        for method, values in setup.table.paper.items():
            assert len(values) == len(setup.table.columns), (name, method)
        assert all(spec.prompt and spec.seed > 0 for spec in setup.specs)
        assert {spec.role for spec in setup.specs} >= {"keep"} or name == "composite/both"


def test_instances_are_drawn_in_the_paper_s_numbers():
    setup = setup_of_paper("instances/snoopy-mickey", {})
    counted = Counter((spec.group, spec.role) for spec in setup.specs)
    assert (
        counted["Snoopy", "erase"]
        == counted["Mickey", "erase"]
        == counted["Pikachu", "keep"]
        == 800
    )
    assert len({spec.prompt for spec in setup.specs if spec.group == "Snoopy"}) == 80
    assert setup.sampling.steps == 20 and setup.sampling.cfg == 7.5
    styles = setup_of_paper("styles/monet", {})
    assert Counter(spec.group for spec in styles.specs)["Monet"] == 300
    assert "art" in styles.labels


def test_the_paper_s_own_rows_are_the_paper_s(tmp_path):
    """Taken from the tables by hand, against what was copied by a program."""
    snoopy = setup_of_paper("instances/snoopy", {}).table
    column = snoopy.columns.index(("Pikachu", "fid"))
    assert snoopy.paper["SPEED"][column] == 16.81 and snoopy.paper["UCE"][column] == 19.06
    people = setup_of_paper("people/100", {}).table
    assert people.paper["SPEED"][:4] == [5.87, 85.54, 89.63, 5.0]
    nudity = setup_of_paper("implicit/nudity", {}).table
    assert nudity.paper["AdvUnlearn"][:4] == [0.04, 0.0, 0.0, 0.21]


def test_every_rung_of_a_ladder_asks_for_the_erased_name_with_less_of_it():
    cases = [name for name in available() if name.startswith("indirect/")]
    assert len(cases) == 4
    for name in cases:
        setup = setup_of_paper(name, {})
        rungs: dict[str, list[str]] = {}
        for spec in setup.specs:
            if spec.role == "erase":
                rungs.setdefault(spec.group, []).append(spec.prompt)
                target = spec.concept
        assert [group for group, _ in setup.table.columns] == list(rungs)
        first, *_, last = rungs.values()
        assert all(target in prompt for prompt in first)
        words = target.lower().split()
        assert not any(word in prompt.lower().split() for prompt in last for word in words)
        assert len({len(prompts) for prompts in rungs.values()}) == 1


def test_each_flux_case_erases_one_class_of_ten():
    cases = [name for name in available() if name.startswith("objects/")]
    erased = set()
    for name in cases:
        setup = setup_of_paper(name, {})
        counted = Counter(spec.role for spec in setup.specs)
        assert counted["keep"] == 9 * counted["erase"] > 0 and setup.sampling.cfg == 1.0
        erased |= {spec.concept for spec in setup.specs if spec.role == "erase"}
    assert len(erased) == len(cases) == 10


def test_people_come_from_the_user_s_list_or_by_rule(tmp_path):
    ours = setup_of_paper("people/10", {})
    counted = Counter(spec.role for spec in ours.specs if spec.concept)
    assert counted == {"erase": 500, "keep": 500}
    assert len({spec.concept for spec in ours.specs if spec.role == "erase" and spec.concept}) == 10
    file = tmp_path / "10.csv"
    file.write_text(
        "id,type,text,concept,seed\n1,erase,A portrait of Ann,Ann,7\n2,retain,A sketch of"
        " Bob,Bob,8\n"
    )
    theirs = setup_of_paper("people/10", {"names": file})
    first, second = theirs.specs[:2]
    assert (first.prompt, first.seed, first.role, first.concept) == (
        "A portrait of Ann",
        7,
        "erase",
        "Ann",
    )
    assert (second.role, second.group) == ("keep", "protected names") and "person" in theirs.labels


def test_captions_and_attacks_are_read_from_files(tmp_path):
    coco = tmp_path / "captions.json"
    coco.write_text(
        json.dumps({"annotations": [{"caption": f"thing {number} "} for number in range(1200)]})
    )
    i2p = tmp_path / "i2p.csv"
    i2p.write_text("prompt,sd_seed\nsomething,123\nanother thing,\n")
    setup = setup_of_paper("implicit/nudity", {"captions": coco, "i2p": i2p})
    counted = Counter(spec.group for spec in setup.specs)
    assert counted == {"I2P": 2, "MS-COCO": 1000}
    assert [spec.seed for spec in setup.specs if spec.group == "I2P"] == [123, 1]
    assert setup.missing_lists == {"mma": "MMA", "ring-a-bell": "Ring-A-Bell", "templates": ""}
    ours = setup_of_paper("implicit/nudity", {"i2p": i2p})
    assert OWN_CAPTIONS in {spec.group for spec in ours.specs} and "captions" in ours.missing_lists
    with pytest.raises(UsageError) as refused:
        setup_of_paper("implicit/nudity", {"names": i2p})
    assert refused.value.data["list"] == "names" and "i2p" in refused.value.data["lists"]


@pytest.mark.parametrize(
    "content", ["[1, 2", "[]", "7", "[[[]]]", '{"annotations": 7}', "[" * 100_000, "[{}, null]"]
)
def test_captions_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "captions.json").write_text(content)
    with pytest.raises(FileError):
        setup_of_paper("instances/snoopy", {"captions": tmp_path / "captions.json"})


@pytest.mark.skipif(sys.platform == "win32", reason="devices and named pipes of POSIX")
@pytest.mark.parametrize("name", ["captions.json", "captions.txt"])
def test_a_list_that_never_ends_is_not_read_forever(tmp_path, name):
    for target in ("/dev/zero", "pipe"):
        if target == "pipe":
            os.mkfifo(tmp_path / target)
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(target)
        with pytest.raises((FileError, InputError)):
            setup_of_paper("instances/snoopy", {"captions": tmp_path / name})


def test_an_unknown_setup_is_answered_with_the_nearest():
    with pytest.raises(UsageError) as refused:
        setup_of_paper("styles/vangogh", {})
    assert "did you mean 'styles/van-gogh'?" in str(refused.value)


def test_composite_pictures_are_drawn_once_and_counted_twice():
    setup = setup_of_paper("composite/van-gogh", {})
    roles = {(spec.concept, spec.role) for spec in setup.specs}
    assert roles == {("Snoopy", "keep"), ("Van Gogh", "erase")}
    drawn = Counter((spec.prompt, spec.seed) for spec in setup.specs)
    assert set(drawn.values()) == {2} and all(
        "Snoopy" in prompt and "Van Gogh" in prompt for prompt, _ in drawn
    )


def test_concepts_are_drawn_with_aliases_neighbours_and_captions():
    setup = setup_of_concepts(
        parse_concepts("Zorn | Anders Zorn -> art", "style"), ["Klee"], seeds=2, captions=3
    )
    counted = Counter((spec.group, spec.role) for spec in setup.specs)
    assert counted == {("Zorn", "erase"): 20, ("Klee", "keep"): 10, (OWN_CAPTIONS, "keep"): 6}
    assert any("Anders Zorn" in spec.prompt for spec in setup.specs) and set(setup.labels) == {
        "Zorn",
        "art",
        "Klee",
    }
    few = setup.limited(2, 1)
    assert Counter(spec.group for spec in few.specs) == {"Zorn": 2, "Klee": 2, OWN_CAPTIONS: 2}


def test_a_file_of_prompts_tells_roles_or_the_concepts_do(tmp_path):
    concepts = parse_concepts("Zorn | A. Zorn -> art", "style")
    plain = tmp_path / "mine.txt"
    plain.write_text("a harbour by Zorn\na portrait by A. Zorn\na boat\n")
    setup = setup_of_file(plain, concepts, seeds=2)
    assert [(spec.role, spec.concept, spec.seed) for spec in setup.specs[:3]] == [
        ("erase", "Zorn", 1),
        ("erase", "Zorn", 2),
        ("erase", "Zorn", 1),
    ]
    assert setup.specs[-1].role == "keep" and setup.specs[-1].group == "prompts"
    table = tmp_path / "mine.csv"
    table.write_text("prompt;type;concept;seed;group\na boat;keep;;5;boats\na cat;erase;cat;;\n")
    setup = setup_of_file(table, (), seeds=1)
    assert [(spec.group, spec.role, spec.seed) for spec in setup.specs] == [
        ("boats", "keep", 5),
        ("cat", "erase", 1),
    ]
    table.write_text("prompt,type\na boat,hide\n")
    with pytest.raises(InputError) as refused:
        setup_of_file(table, (), seeds=1)
    assert refused.value.data == {"line": 2, "type": "hide"}
    table.write_text("prompt,seed\na boat,1\na boat,many\n")
    with pytest.raises(InputError) as refused:
        setup_of_file(table, (), seeds=1)
    assert refused.value.data == {"line": 3, "seed": "many"}
    plain.write_text("\n")
    with pytest.raises(InputError) as refused:
        setup_of_file(plain, (), seeds=1)
    assert refused.value.data == {"images": 0}
