"""Generating on several servers: spread, retried elsewhere, resumed, the same images from any of
them.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from fake_comfy import FakeComfy

from speed_erase.speed_ops.errors import FileError, InputError, NotFoundError, UsageError
from speed_erase.speed_ops.evaluate.album import (
    Album,
    encode_png,
    image_key,
    import_images,
    jobs_for,
    write_prompt_list,
)
from speed_erase.speed_ops.evaluate.backend import (
    GeneratedImage,
    ServerRejected,
    ServerUnavailable,
    parse_model,
)
from speed_erase.speed_ops.evaluate.client import ComfyClient
from speed_erase.speed_ops.evaluate.queue import generate_missing
from speed_erase.speed_ops.evaluate.setup import ImageSpec, Sampling

SMALL = Sampling(width=16, height=16, steps=3)
SPECS = [
    ImageSpec("Zorn", "erase", f"a {thing} by Zorn", seed, "Zorn")
    for thing in ("boat", "tree")
    for seed in (1, 2, 3)
]


def models():
    original = parse_model("model.safetensors", "original", None)
    return [original, parse_model("lora:eraser.safetensors@0.5", "erased", original)]


@pytest.fixture
def jobs():
    return jobs_for(models(), SPECS, SMALL)


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
    assert (
        generate_missing([ComfyClient(single.url)], jobs, one, note=pytest.fail) == len(jobs) == 12
    )
    generate_missing([ComfyClient(fake.url) for fake in three], jobs, many, note=pytest.fail)
    assert contents(one, jobs) == contents(many, jobs)
    assert (
        sum(len(fake.drawn) for fake in three) == 12
        and len([fake for fake in three if fake.drawn]) > 1
    )
    assert generate_missing([ComfyClient(single.url)], jobs, one, note=pytest.fail) == 0
    assert len(single.drawn) == 12, "nothing is drawn twice"
    drawn = one.get(jobs[0].key)
    assert drawn.seconds == 0.5 and drawn.finite


def test_a_server_that_dies_loses_nothing(fakes, jobs, tmp_path):
    good, dying = fakes(), fakes(dies_after=2)
    said: list[str] = []
    album, other = Album(tmp_path / "album"), Album(tmp_path / "other")
    generate_missing(
        [ComfyClient(dying.url), ComfyClient(good.url)], jobs, album, note=said.append, patience=0.1
    )
    assert dying.dead and len(said) == 1 and dying.url.removeprefix("http://") in said[0]
    assert len(good.drawn) == len(jobs) - 2, "what the dead one had finished is not drawn again"
    generate_missing([ComfyClient(good.url)], jobs, other, note=pytest.fail)
    assert contents(album, jobs) == contents(other, jobs)


def test_when_all_die_what_is_drawn_stays_and_the_next_run_goes_on(fakes, jobs, tmp_path):
    album, dying, good = Album(tmp_path), fakes(dies_after=5), fakes()
    with pytest.raises(ServerUnavailable) as fault:
        generate_missing(
            [ComfyClient(dying.url)], jobs, album, note=lambda text: None, patience=0.1
        )
    assert fault.value.data == {"remaining": 7, "total": 12}
    assert (
        generate_missing([ComfyClient(good.url)], jobs, album, note=pytest.fail)
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
    generate_missing([ComfyClient(fake.url)], jobs, Album(tmp_path), note=said.append, patience=20)
    assert len(said) == 2 and len(fake.drawn) == 12


def test_what_one_server_cannot_draw_another_may(fakes, jobs, tmp_path):
    bad, good = fakes(refuses=True), fakes()
    album, said = Album(tmp_path), list[str]()
    generate_missing([ComfyClient(bad.url), ComfyClient(good.url)], jobs, album, note=said.append)
    assert all(album.holds(job.key) for job in jobs) and len(good.drawn) == 12
    assert len(bad.drawn) <= 3, "a server that fails time and again is left alone"


def test_a_picture_that_nobody_can_draw_ends_the_run_with_the_server_s_words(fakes, jobs, tmp_path):
    with pytest.raises(ServerRejected, match="KSampler: out of memory") as fault:
        generate_missing(
            [ComfyClient(fakes(refuses=True).url)], jobs, Album(tmp_path), note=pytest.fail
        )
    assert fault.value.data == {"prompt": "a boat by Zorn", "seed": 1}


def test_a_server_that_is_off_is_left_out_and_one_without_the_model_is_refused(
    fakes, jobs, tmp_path
):
    off, good = ComfyClient("127.0.0.1:1"), fakes()
    said: list[str] = []
    generate_missing([off, ComfyClient(good.url)], jobs, Album(tmp_path), note=said.append)
    assert len(said) == 1 and "127.0.0.1:1" in said[0]
    assert "Connection refused" in said[0], "the system's reason, not the library's layers"
    with pytest.raises(ServerUnavailable):
        generate_missing([off], jobs, Album(tmp_path / "new"), note=said.append)
    lost = jobs_for([parse_model("modell.safetensors", "original", None)], SPECS, SMALL)
    with pytest.raises(InputError, match=r"did you mean 'model\.safetensors'") as fault:
        generate_missing([ComfyClient(good.url)], lost, Album(tmp_path / "new"), note=said.append)
    assert fault.value.data["model"] == "modell.safetensors"
    with pytest.raises(InputError) as fault:
        generate_missing([], jobs, Album(tmp_path / "new"), note=said.append)
    assert fault.value.data == {"missing": 12}


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
        client, model = ComfyClient(fake.url), parse_model(text, "erased", original)
        client.check_models([model])
        client.generate(model, ImageSpec("g", "keep", "a (red) boat", 7), SMALL)
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
    with pytest.raises(UsageError):
        parse_model("lora:x@much", "erased", original)
    with pytest.raises(UsageError):
        parse_model("lora:x", "original", None)
    with pytest.raises(NotFoundError):
        parse_model("pictures:nowhere", "erased", original)
    for bad in ("ftp://x", "http://"):
        with pytest.raises(UsageError):
            ComfyClient(bad)


def test_the_key_of_a_picture_knows_everything_that_shapes_it():
    original, erased = models()
    spec = SPECS[0]
    keys = {
        image_key(original, spec, SMALL),
        image_key(erased, spec, SMALL),
        image_key(original, SPECS[1], SMALL),
        image_key(original, spec, Sampling(width=16, height=16, steps=4)),
    }
    assert len(keys) == 4
    same = ImageSpec("another group", "keep", spec.prompt, spec.seed)
    assert image_key(original, same, SMALL) in keys, "groups share pictures"


def test_pictures_drawn_elsewhere_are_brought_in_by_their_numbers(tmp_path):
    write_prompt_list(tmp_path / "prompts.csv", SPECS + SPECS[:1])
    lines = (tmp_path / "prompts.csv").read_text().splitlines()
    assert len(lines) == 7 and lines[1] == "1,a boat by Zorn,1,erase,Zorn,Zorn"
    folder = tmp_path / "theirs"
    folder.mkdir()
    for number in range(1, 7):
        (folder / f"{number:05}.png").write_bytes(encode_png(np.full((8, 8, 3), number, np.uint8)))
    jobs = jobs_for([parse_model(f"pictures:{folder}", "theirs", None)], SPECS, SMALL)
    album = Album(tmp_path / "album")
    assert import_images(jobs, SPECS, album) == 6 and import_images(jobs, SPECS, album) == 0
    assert album.get(jobs[3].key).pixels[0, 0, 0] == 4
    (folder / "00002.png").unlink()
    changed = jobs_for([parse_model(f"pictures:{folder}", "theirs", None)], SPECS, SMALL)
    with pytest.raises(FileError) as fault:
        import_images(changed, SPECS, album)
    assert fault.value.data == {"number": 2, "prompt": "a boat by Zorn", "seed": 2}


def test_a_damaged_picture_says_what_to_do(tmp_path, jobs):
    album = Album(tmp_path)
    album.put(jobs[0], GeneratedImage(np.zeros((4, 4, 3), np.uint8), finite=False), "somebody")
    assert album.get(jobs[0].key).finite is False
    album.path(jobs[0].key).write_bytes(b"not a picture")
    with pytest.raises(FileError) as fault:
        album.get(jobs[0].key)
    assert fault.value.data == {"path": str(album.path(jobs[0].key))}


@pytest.mark.parametrize(
    "facts", ["[]", "7", "{", "[" * 5000, '{"seconds": "x"}', '{"seconds": 1e999}', "x" * 10**6]
)
def test_what_an_image_says_about_itself_breaks_nothing(tmp_path, jobs, facts):
    """Several runs share a folder of images, which other programs may have written to."""
    album = Album(tmp_path)
    path = album.path(jobs[0].key)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_png(np.zeros((4, 4, 3), np.uint8), {"speed.evaluate": facts}))
    try:
        assert album.get(jobs[0].key).seconds == 0.0
    except FileError as fault:
        assert fault.data == {"path": str(path)}


def test_a_huge_image_of_an_earlier_run_is_not_decoded(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr("speed_erase.speed_ops.evaluate.album.MAX_PIXELS", 15)
    album = Album(tmp_path)
    album.put(jobs[0], GeneratedImage(np.zeros((4, 4, 3), np.uint8)), "somebody")
    with pytest.raises(FileError):
        album.get(jobs[0].key)


def test_an_image_with_broken_pieces_is_one_sentence(tmp_path, jobs):
    album = Album(tmp_path)
    album.put(jobs[0], GeneratedImage(np.zeros((4, 4, 3), np.uint8)), "somebody")
    path = album.path(jobs[0].key)
    sound = path.read_bytes()
    for start in range(8, len(sound), 3):
        path.write_bytes(sound[:start] + b"\xff\x00\xff" + sound[start + 3 :])
        try:
            album.get(jobs[0].key)
        except FileError as fault:
            assert fault.data == {"path": str(path)}
