"""Setups: what is drawn, in which numbers, and which lists are read from where the user has
them.
"""

from __future__ import annotations

import json
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
    assert len(available()) == 13
    for name in available():
        setup = setup_of_paper(name, {})
        assert setup.table is not None and setup.shots and setup.notes
        for method, values in setup.table.figures.items():
            assert len(values) == len(setup.table.columns), (name, method)
        assert all(shot.prompt and shot.seed > 0 for shot in setup.shots)
        assert {shot.role for shot in setup.shots} >= {"keep"} or name == "composite/both"


def test_instances_are_drawn_in_the_paper_s_numbers():
    setup = setup_of_paper("instances/snoopy-mickey", {})
    counted = Counter((shot.group, shot.role) for shot in setup.shots)
    assert (
        counted["Snoopy", "erase"]
        == counted["Mickey", "erase"]
        == counted["Pikachu", "keep"]
        == 800
    )
    assert len({shot.prompt for shot in setup.shots if shot.group == "Snoopy"}) == 80
    assert setup.sampling.steps == 20 and setup.sampling.cfg == 7.5
    styles = setup_of_paper("styles/monet", {})
    assert Counter(shot.group for shot in styles.shots)["Monet"] == 300
    assert styles.anchors == {"Monet": "art"} and "art" in styles.labels


def test_the_paper_s_own_rows_are_the_paper_s(tmp_path):
    """Taken from the tables by hand, against what was copied by a program."""
    snoopy = setup_of_paper("instances/snoopy", {}).table
    column = snoopy.columns.index(("Pikachu", "FID"))
    assert snoopy.figures["SPEED"][column] == 16.81 and snoopy.figures["UCE"][column] == 19.06
    people = setup_of_paper("people/100", {}).table
    assert people.figures["SPEED"][:4] == [5.87, 85.54, 89.63, 5.0]
    nudity = setup_of_paper("implicit/nudity", {}).table
    assert nudity.figures["AdvUnlearn"][:4] == [0.04, 0.0, 0.0, 0.21]


def test_people_come_from_the_user_s_list_or_by_rule(tmp_path):
    ours = setup_of_paper("people/10", {})
    counted = Counter(shot.role for shot in ours.shots if shot.concept)
    assert counted == {"erase": 500, "keep": 500}
    assert len({shot.concept for shot in ours.shots if shot.role == "erase" and shot.concept}) == 10
    file = tmp_path / "10.csv"
    file.write_text(
        "id,type,text,concept,seed\n1,erase,A portrait of Ann,Ann,7\n2,retain,A sketch of"
        " Bob,Bob,8\n"
    )
    theirs = setup_of_paper("people/10", {"names": file})
    first, second = theirs.shots[:2]
    assert (first.prompt, first.seed, first.role, first.concept) == (
        "A portrait of Ann",
        7,
        "erase",
        "Ann",
    )
    assert (second.role, second.group) == ("keep", "kept names") and theirs.anchors == {
        "Ann": "person"
    }


def test_captions_and_attacks_are_read_from_files(tmp_path):
    coco = tmp_path / "captions.json"
    coco.write_text(
        json.dumps({"annotations": [{"caption": f"thing {number} "} for number in range(1200)]})
    )
    i2p = tmp_path / "i2p.csv"
    i2p.write_text("prompt,sd_seed\nsomething,123\nanother thing,\n")
    setup = setup_of_paper("implicit/nudity", {"captions": coco, "i2p": i2p})
    counted = Counter(shot.group for shot in setup.shots)
    assert counted == {"I2P": 2, "MS-COCO": 1000}
    assert [shot.seed for shot in setup.shots if shot.group == "I2P"] == [123, 1]
    assert any("MMA was left out" in text for text in setup.notes)
    assert OWN_CAPTIONS in setup_of_paper("implicit/nudity", {"i2p": i2p}).groups
    with pytest.raises(UsageError, match="reads no list 'names'"):
        setup_of_paper("implicit/nudity", {"names": i2p})
    coco.write_text("[1, 2")
    with pytest.raises(FileError, match="Cannot read captions"):
        setup_of_paper("instances/snoopy", {"captions": coco})


def test_an_unknown_setup_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'styles/van-gogh'"):
        setup_of_paper("styles/vangogh", {})


def test_composite_pictures_are_drawn_once_and_counted_twice():
    setup = setup_of_paper("composite/van-gogh", {})
    roles = {(shot.concept, shot.role) for shot in setup.shots}
    assert roles == {("Snoopy", "keep"), ("Van Gogh", "erase")}
    drawn = Counter((shot.prompt, shot.seed) for shot in setup.shots)
    assert set(drawn.values()) == {2} and all(
        "Snoopy" in prompt and "Van Gogh" in prompt for prompt, _ in drawn
    )


def test_concepts_are_drawn_with_aliases_neighbours_and_captions():
    setup = setup_of_concepts(
        parse_concepts("Zorn | Anders Zorn -> art", "style"), ["Klee"], seeds=2, captions=3
    )
    counted = Counter((shot.group, shot.role) for shot in setup.shots)
    assert counted == {("Zorn", "erase"): 20, ("Klee", "keep"): 10, (OWN_CAPTIONS, "keep"): 6}
    assert any("Anders Zorn" in shot.prompt for shot in setup.shots) and set(setup.labels) == {
        "Zorn",
        "art",
        "Klee",
    }
    few = setup.limited(2, 1)
    assert Counter(shot.group for shot in few.shots) == {"Zorn": 2, "Klee": 2, OWN_CAPTIONS: 2}


def test_a_file_of_prompts_tells_roles_or_the_concepts_do(tmp_path):
    concepts = parse_concepts("Zorn | A. Zorn -> art", "style")
    plain = tmp_path / "mine.txt"
    plain.write_text("a harbour by Zorn\na portrait by A. Zorn\na boat\n")
    setup = setup_of_file(plain, concepts, seeds=2)
    assert [(shot.role, shot.concept, shot.seed) for shot in setup.shots[:3]] == [
        ("erase", "Zorn", 1),
        ("erase", "Zorn", 2),
        ("erase", "Zorn", 1),
    ]
    assert setup.shots[-1].role == "keep" and setup.shots[-1].group == "prompts"
    table = tmp_path / "mine.csv"
    table.write_text("prompt;type;concept;seed;group\na boat;keep;;5;boats\na cat;erase;cat;;\n")
    setup = setup_of_file(table, (), seeds=1)
    assert [(shot.group, shot.role, shot.seed) for shot in setup.shots] == [
        ("boats", "keep", 5),
        ("cat", "erase", 1),
    ]
    table.write_text("prompt,type\na boat,hide\n")
    with pytest.raises(InputError, match=r"line 2: the type is 'hide'"):
        setup_of_file(table, (), seeds=1)
    table.write_text("prompt,seed\na boat,many\n")
    with pytest.raises(InputError, match="the seed is 'many'"):
        setup_of_file(table, (), seeds=1)
    plain.write_text("\n")
    with pytest.raises(InputError, match="nothing to draw"):
        setup_of_file(plain, (), seeds=1)
