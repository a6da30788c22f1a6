"""What the screen asks: answered in the parser's own words, line by line."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture
def folder(comfyui, tmp_path):
    import folder_paths

    before = folder_paths.get_input_directory()
    folder_paths.set_input_directory(str(tmp_path))
    yield tmp_path
    folder_paths.set_input_directory(before)


def test_every_line_is_judged_whatever_is_wrong_with_others(folder):
    from speed_erase.nodes.concept_list import check

    text = (
        "Van Gogh\n# note\na -> b -> c\nSnoopy | beagle -> dog || character\nvan gogh -> art\ncow"
        " -> cow\nx|| paintr"
    )
    answer = check({"text": text, "kind": "style", "file": "none"})
    lines = {entry["line"]: entry for entry in answer["lines"]}
    assert set(lines) == {1, 3, 4, 5, 6, 7}
    assert (lines[1]["target"], lines[1]["anchor"], lines[1]["problem"]) == (
        "Van Gogh",
        "art",
        None,
    )
    assert lines[3]["problem"]["code"] == "several_arrows"
    assert lines[3]["problem"]["data"] == {"where": "Line 3"}
    assert (lines[4]["kind"], lines[4]["aliases"]) == ("character", ["beagle"])
    (repeat,) = lines[5]["notes"]
    assert lines[5]["problem"] is None and repeat["code"] == "repeated"
    assert repeat["data"] == {"where": "Line 5", "name": "van gogh", "owner": "line 1"}
    assert lines[6]["problem"]["code"] == "becomes_itself"
    assert lines[7]["problem"]["code"] == "unknown_type"
    assert lines[7]["problem"]["data"]["type"] == "paintr"


def test_what_a_run_would_refuse_is_what_is_marked(folder):
    from speed_erase.nodes.concept_list import ConceptListNode, check

    for text in ("Monet\nMonet -> person", "a => b", "x ||", "a | -> b", "‮", "y" * 400):
        refusal = ConceptListNode.validate_inputs(text=text, kind="style")
        marked = [
            entry["problem"]["text"]
            for entry in check({"text": text, "kind": "style"})["lines"]
            if entry["problem"]
        ]
        assert marked[:1] == (
            [refusal] if refusal is not True and "nothing to erase" not in refusal else []
        )


def test_notes_speak_of_invisible_characters_and_of_too_many_tokens(folder):
    from speed_erase.nodes.concept_list import check

    hidden, long = check({"text": "Mo\u200bnet\n" + "zq " * 90, "kind": "style"})["lines"]
    ((removed,), (tokens,)) = hidden["notes"], long["notes"]
    assert not hidden["problem"] and removed["code"] == "invisible_removed"
    assert removed["data"]["names"] == ["Monet"]
    assert tokens["code"] == "too_many_tokens" and tokens["data"]["limit"] == 75


def test_a_target_inside_protected_names_is_noted_on_its_line(folder):
    from speed_erase.nodes.concept_list import check

    question = {
        "text": "Van Gogh\nGoya",
        "kind": "style",
        "retain": {"text": "Van Gogh Museum\nRembrandt\ngoya"},
    }
    first, second = check(question)["lines"]
    (note,) = first["notes"]
    assert (note["code"], note["data"]) == ("contained_in", {"names": ["Van Gogh Museum"]})
    assert not first["problem"] and not second["notes"]


def test_names_are_suggested_from_our_lists_and_the_users_files(folder):
    from speed_erase.nodes.concept_list import suggest

    assert "Claude Monet" in suggest({"text": "mone", "kind": "style"})["names"]
    (folder / "mine.txt").write_text("Zzyzx Painter -> art\n")
    (folder / "broken.csv").write_text("no,such,column\n1,2,3\n")
    assert suggest({"text": "zzyzx pa", "kind": "style"})["names"] == ["Zzyzx Painter"]
    assert suggest({"text": "  ", "kind": "style"})["names"] == []


def test_a_look_at_kept_names_counts_searches_and_tells_what_drops_out(folder):
    from speed_erase.nodes.retain_set_loader import look

    question = {
        "builtin": "none",
        "text": "Claude Monet\nVan Gogh Museum\nRembrandt",
        "file": "none",
        "column": "",
        "limit": 0,
    }
    answer = look(
        {
            **question,
            "concepts": "Van Gogh\nbroken -> a -> b",
            "concepts_kind": "style",
            "search": "REM",
        }
    )
    assert answer["total"] == 3 and answer["counts"] == [("typed", 3)]
    (left_out,) = answer["notes"]
    assert left_out["code"] == "dropped_one" and left_out["data"]["names"] == ["Van Gogh Museum"]
    assert answer["names"] == ["Rembrandt"] and answer["found"] == 1
    assert answer["dropped_names"] == ["Van Gogh Museum"] and answer["dropped"] == 1
    assert look({**question, "limit": 2})["total"] == 2


def test_search_words_are_given_only_where_they_are_known(comfyui, monkeypatch):
    from comfy_api.latest import io

    from speed_erase.nodes.sockets import essentials, search_aliases

    assert ("essentials_category" in io.Schema.__dataclass_fields__) == bool(essentials("x"))
    assert ("search_aliases" in io.Schema.__dataclass_fields__) == bool(search_aliases("x"))
    monkeypatch.setattr(io.Schema, "__dataclass_fields__", {"search_aliases": None})
    assert "unlearn" in search_aliases("x")["search_aliases"]
