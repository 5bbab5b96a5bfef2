"""`kvwise devices`, `kvwise models` and `kvwise plan --on`: what ships, as a user types it."""

from __future__ import annotations

from typing import Any

import pytest

from kvwise.hardware.devices import devices


def test_devices_are_listed_for_people_and_for_programs(kvwise: Any) -> None:
    table = kvwise("devices")
    assert table.code == 0
    assert all(device.name in table.out for device in devices())
    rows = kvwise("devices", "--json").json["devices"]
    assert [row["name"] for row in rows] == [device.name for device in devices()]
    assert rows[0]["bandwidth"] == 3350e9
    assert rows[0]["links"][0]["source"]


def test_all_of_one_device_has_its_sources(kvwise: Any) -> None:
    told = kvwise("devices", "h100").out
    for words in ("NVLink", "joins up to 8", "usable memory", "decode bandwidth", "source"):
        assert words in told
    assert len(kvwise("devices", "h100", "--json").json["devices"]) == 1


def test_an_unknown_device_is_bad_usage_with_near_names(kvwise: Any) -> None:
    for arguments in (("devices", "rtx 3080"), ("plan", "gpt2", "--on", "rtx3080:2")):
        refused = kvwise(*arguments)
        assert refused.code == 2
        assert "RTX 3090" in refused.err


def test_models_lists_the_catalogue(kvwise: Any) -> None:
    listed = kvwise("models")
    assert "meta-llama/Llama-3.1-70B" in listed.out
    known = {m["id"]: m for m in kvwise("models", "--json").json["catalogue"]}
    assert known["meta-llama/Llama-3.1-70B"]["parameters"] == 70_553_706_496


def test_a_model_of_the_catalogue_is_planned_on_devices_without_a_network(
    kvwise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    figures = kvwise("plan", "llama-3.1-70b", "--on", "h100:tp2,pp2", "--json").json
    assert figures["source"] == "catalogue"
    assert figures["fits"] is True
    assert figures["available_source"] == "H100 SXM5 80GB"
    placed = figures["placed"]
    assert (placed["tensor_parallel"], placed["pipeline_parallel"], len(placed["stages"])) == (2, 2, 2)
    assert figures["total_bytes"] == max(stage["total_bytes"] for stage in placed["stages"])
    shown = kvwise("plan", "meta-llama/Llama-3.1-70B-Instruct", "--on", "h100:tp2,pp2").out
    for words in ("on 4 x H100 SXM5 80GB", "stage 2", "KV pool", "requests of 4,096 tokens at once"):
        assert words in shown


def test_what_does_not_fit_devices_ends_with_3_when_asked(kvwise: Any) -> None:
    refused = kvwise("plan", "llama-3.1-70b", "--on", "l4:2", "--check")
    assert refused.code == 3
    assert "2 x L4 needs" in refused.err
    assert kvwise("plan", "llama-3.1-70b", "--on", "l4:2").code == 0


@pytest.mark.parametrize("on", ["h100:3", "h100:tp0", "h100:4:4", "", "this:2"])
def test_what_is_no_placement_of_this_model_is_bad_usage(kvwise: Any, on: str) -> None:
    assert kvwise("plan", "llama-3.1-70b", "--on", on).code == 2


def test_a_name_that_is_nearly_one_of_the_catalogue_is_refused_with_it(
    kvwise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused = kvwise("plan", "llama-3.1-71b")
    assert refused.code == 2
    assert "meta-llama/Llama-3.1-70B" in refused.err


def test_what_is_on_this_disk_goes_before_the_catalogue(
    kvwise: Any, tiny: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").symlink_to(tiny)
    monkeypatch.chdir(tmp_path)
    assert kvwise("plan", "gpt2", "--json").json["source"] == "safetensors"
    monkeypatch.chdir(tiny)
    assert kvwise("plan", "gpt2", "--json").json["source"] == "catalogue"


def test_pictures_come_on_top_of_the_context(kvwise: Any) -> None:
    figures = kvwise("plan", "qwen3-vl-8b", "--context", "1000", "--picture", "512x512", "--json").json
    assert figures["context"] == 1258
    assert "a picture of 512 x 512 is 258 tokens of the context" in figures["notes"]
    for arguments in (("qwen3-vl-8b", "--picture", "512"), ("qwen3-8b", "--picture", "5x5")):
        refused = kvwise("plan", *arguments)
        assert refused.code == 2
        assert "picture" in refused.err
