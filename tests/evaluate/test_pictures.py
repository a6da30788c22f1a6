"""Drawing on several servers: spread, retried elsewhere, resumed, the same pictures whoever drew
them.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from fake_comfy import FakeComfy

from speed_erase.speed_ops.errors import FileError, InputError, NotFoundError, UsageError
from speed_erase.speed_ops.evaluate.painters import (
    ComfyPainter,
    Drawn,
    PainterFault,
    PainterGone,
    encode,
    parse_model,
)
from speed_erase.speed_ops.evaluate.pictures import (
    Album,
    bring_in,
    draw_missing,
    jobs_for,
    numbered,
    picture_key,
    write_list,
)
from speed_erase.speed_ops.evaluate.setup import Sampling, Shot

SMALL = Sampling(width=16, height=16, steps=3)
SHOTS = [
    Shot("Zorn", "erase", f"a {thing} by Zorn", seed, "Zorn")
    for thing in ("boat", "tree")
    for seed in (1, 2, 3)
]


def models():
    original = parse_model("model.safetensors", "original", None)
    return [original, parse_model("lora:eraser.safetensors@0.5", "erased", original)]


@pytest.fixture
def jobs():
    return jobs_for(models(), SHOTS, SMALL)


@pytest.fixture
def fakes():
    made = []

    def make(**options) -> FakeComfy:
        made.append(FakeComfy(**options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def contents(album: Album, jobs) -> list[bytes]:
    return [album.get(job.key).pixels.tobytes() for job in jobs]


def test_three_servers_draw_what_one_draws_and_each_picture_once(fakes, jobs, tmp_path):
    one, many = Album(tmp_path / "one"), Album(tmp_path / "many")
    single, three = fakes(), [fakes() for _ in range(3)]
    assert draw_missing([ComfyPainter(single.url)], jobs, one, note=pytest.fail) == len(jobs) == 12
    draw_missing([ComfyPainter(fake.url) for fake in three], jobs, many, note=pytest.fail)
    assert contents(one, jobs) == contents(many, jobs)
    assert (
        sum(len(fake.drawn) for fake in three) == 12
        and len([fake for fake in three if fake.drawn]) > 1
    )
    assert draw_missing([ComfyPainter(single.url)], jobs, one, note=pytest.fail) == 0
    assert len(single.drawn) == 12, "nothing is drawn twice"
    drawn = one.get(jobs[0].key)
    assert drawn.seconds == 0.5 and drawn.finite


def test_a_server_that_dies_loses_nothing(fakes, jobs, tmp_path):
    good, dying = fakes(), fakes(dies_after=2)
    said: list[str] = []
    album, other = Album(tmp_path / "album"), Album(tmp_path / "other")
    draw_missing(
        [ComfyPainter(dying.url), ComfyPainter(good.url)],
        jobs,
        album,
        note=said.append,
        patience=0.1,
    )
    assert dying.dead and any("goes to others" in text for text in said)
    assert len(good.drawn) == len(jobs) - 2, "what the dead one had finished is not drawn again"
    draw_missing([ComfyPainter(good.url)], jobs, other, note=pytest.fail)
    assert contents(album, jobs) == contents(other, jobs)


def test_when_all_die_what_is_drawn_stays_and_the_next_run_goes_on(fakes, jobs, tmp_path):
    album, dying, good = Album(tmp_path), fakes(dies_after=5), fakes()
    with pytest.raises(
        PainterGone, match="7 of 12 pictures are still to be drawn; run the same command again"
    ):
        draw_missing([ComfyPainter(dying.url)], jobs, album, note=lambda text: None, patience=0.1)
    assert (
        draw_missing([ComfyPainter(good.url)], jobs, album, note=pytest.fail)
        == 7
        == len(good.drawn)
    )


def test_a_server_that_comes_back_goes_on(fakes, jobs, tmp_path):
    fake = fakes(dies_after=4)

    def revive() -> None:
        while not fake.dead:
            time.sleep(0.01)
        fake.dies_after, fake.dead = None, False

    threading.Thread(target=revive, daemon=True).start()
    said: list[str] = []
    draw_missing([ComfyPainter(fake.url)], jobs, Album(tmp_path), note=said.append, patience=20)
    assert any("is back" in text for text in said) and len(fake.drawn) == 12


def test_what_one_server_cannot_draw_another_may(fakes, jobs, tmp_path):
    bad, good = fakes(refuses=True), fakes()
    album, said = Album(tmp_path), list[str]()
    draw_missing([ComfyPainter(bad.url), ComfyPainter(good.url)], jobs, album, note=said.append)
    assert all(album.holds(job.key) for job in jobs) and len(good.drawn) == 12
    assert len(bad.drawn) <= 3, "a server that fails time and again is left alone"


def test_a_picture_that_nobody_can_draw_ends_the_run_with_the_server_s_words(fakes, jobs, tmp_path):
    with pytest.raises(
        PainterFault,
        match=r"'a boat by Zorn' \(seed 1\) cannot be drawn: .*KSampler: out of memory",
    ):
        draw_missing(
            [ComfyPainter(fakes(refuses=True).url)], jobs, Album(tmp_path), note=pytest.fail
        )


def test_a_server_that_is_off_is_left_out_and_one_without_the_model_is_refused(
    fakes, jobs, tmp_path
):
    off, good = ComfyPainter("127.0.0.1:1"), fakes()
    said: list[str] = []
    draw_missing([off, ComfyPainter(good.url)], jobs, Album(tmp_path), note=said.append)
    assert "127.0.0.1:1 does not answer" in said[0] and "Going on without it" in said[0]
    with pytest.raises(PainterGone, match="does not answer"):
        draw_missing([off], jobs, Album(tmp_path / "new"), note=said.append)
    lost = jobs_for([parse_model("modell.safetensors", "original", None)], SHOTS, SMALL)
    with pytest.raises(
        InputError,
        match=r"no checkpoint 'modell.safetensors' \(did you mean 'model.safetensors'\?\)",
    ):
        draw_missing([ComfyPainter(good.url)], lost, Album(tmp_path / "new"), note=said.append)
    with pytest.raises(InputError, match="nobody to draw them: give --server"):
        draw_missing([], jobs, Album(tmp_path / "new"), note=said.append)


def test_the_graph_is_made_of_stock_nodes_for_every_kind_of_model(fakes, tmp_path):
    fake = fakes()
    original = parse_model("model.safetensors", "original", None)
    kinds = {
        "erased.safetensors": {"CheckpointLoaderSimple"},
        "diffusers:folder": {"DiffusersLoader"},
        "lora:eraser.safetensors": {"CheckpointLoaderSimple", "LoraLoader"},
        "unet:unet.safetensors": {"CheckpointLoaderSimple", "UNETLoader"},
        "clip:clip.safetensors": {"CheckpointLoaderSimple", "CLIPLoader"},
    }
    drawing = {"CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode", "PreviewImage"}
    for text, loaders in kinds.items():
        painter, model = ComfyPainter(fake.url), parse_model(text, "erased", original)
        painter.ready([model])
        painter.draw(model, Shot("g", "keep", "a (red) boat", 7), SMALL)
        graph = fake.drawn[-1]
        assert {node["class_type"] for node in graph.values()} == loaders | drawing
        assert (
            graph["4"]["inputs"]["text"] == "a \\(red\\) boat" and graph["7"]["inputs"]["seed"] == 7
        )
    assert fake.drawn[0]["1"]["inputs"]["ckpt_name"] == "sub\\erased.safetensors", (
        "the server's own spelling"
    )
    assert fake.drawn[2]["7"]["inputs"]["model"] == ["2", 0] and fake.drawn[2]["8"]["inputs"][
        "vae"
    ] == ["1", 2]
    assert fake.drawn[4]["4"]["inputs"]["clip"] == ["2", 0] and fake.drawn[4]["7"]["inputs"][
        "model"
    ] == ["1", 0]


def test_models_are_what_is_typed_or_what_their_file_says(tmp_path):
    import torch
    from safetensors.torch import save_file

    lora = {
        f"lora_unet_x_attn2_to_v.lora_{part}.weight": torch.ones(2, 2) for part in ("up", "down")
    }
    file = tmp_path / "any.safetensors"
    save_file(lora, file)
    original = parse_model("model.safetensors", "original", None)
    found = parse_model(str(file), "erased", original)
    assert (
        found.kind == "lora"
        and found.name == "any.safetensors"
        and found.identity.startswith("sha256 ")
    )
    assert found.identity != parse_model(f"lora:{file}@0.5", "erased", original).identity
    save_file(lora | {"more": torch.ones(1)}, file)
    assert parse_model(str(file), "erased", original).identity != found.identity, (
        "another file, other pictures"
    )
    with pytest.raises(UsageError, match="write lora:NAME@0"):
        parse_model("lora:x@much", "erased", original)
    with pytest.raises(UsageError, match="is put on the original"):
        parse_model("lora:x", "original", None)
    with pytest.raises(NotFoundError, match="There is no folder"):
        parse_model("pictures:nowhere", "erased", original)
    for bad in ("ftp://x", "http://"):
        with pytest.raises(UsageError, match="is not a server's address"):
            ComfyPainter(bad)


def test_the_key_of_a_picture_knows_everything_that_shapes_it():
    original, erased = models()
    shot = SHOTS[0]
    keys = {
        picture_key(original, shot, SMALL),
        picture_key(erased, shot, SMALL),
        picture_key(original, SHOTS[1], SMALL),
        picture_key(original, shot, Sampling(width=16, height=16, steps=4)),
    }
    assert len(keys) == 4
    same = Shot("another group", "keep", shot.prompt, shot.seed)
    assert picture_key(original, same, SMALL) in keys, "groups share pictures"


def test_pictures_drawn_elsewhere_are_brought_in_by_their_numbers(tmp_path):
    write_list(tmp_path / "prompts.csv", SHOTS + SHOTS[:1])
    lines = (tmp_path / "prompts.csv").read_text().splitlines()
    assert len(lines) == 7 and lines[1] == "1,a boat by Zorn,1,erase,Zorn,Zorn"
    folder = tmp_path / "theirs"
    folder.mkdir()
    for number in range(1, 7):
        (folder / f"{number:05}.png").write_bytes(encode(np.full((8, 8, 3), number, np.uint8)))
    jobs = jobs_for([parse_model(f"pictures:{folder}", "theirs", None)], SHOTS, SMALL)
    album = Album(tmp_path / "album")
    assert (
        bring_in(jobs, numbered(SHOTS), album) == 6 and bring_in(jobs, numbered(SHOTS), album) == 0
    )
    assert album.get(jobs[3].key).pixels[0, 0, 0] == 4
    (folder / "00002.png").unlink()
    changed = jobs_for([parse_model(f"pictures:{folder}", "theirs", None)], SHOTS, SMALL)
    with pytest.raises(FileError, match=r"has no picture 2\.png, for 'a boat by Zorn' with seed 2"):
        bring_in(changed, numbered(SHOTS), album)


def test_a_damaged_picture_says_what_to_do(tmp_path, jobs):
    album = Album(tmp_path)
    album.put(jobs[0], Drawn(np.zeros((4, 4, 3), np.uint8), finite=False), "somebody")
    assert album.get(jobs[0].key).finite is False
    album.path(jobs[0].key).write_bytes(b"not a picture")
    with pytest.raises(FileError, match="delete it, and it is drawn again"):
        album.get(jobs[0].key)
