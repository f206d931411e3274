from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.open_clip_models import SIZE, TINY, open_clip_or_skip, save_weights
from torch import Tensor

from labelgap import models
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models import backbone_info, check_backbone, create_backbone, is_pretrained, names_address
from labelgap.models.open_clip import zero_shot_classifier

CLASSES = ["dog", "traffic_light", "T-shirt"]
B32 = "open_clip:ViT-B-32/laion2b_s34b_b79k"


@pytest.fixture(scope="module", autouse=True)
def open_clip() -> Any:
    return open_clip_or_skip()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clip") / "tiny.pt"


@pytest.fixture(scope="module")
def model(weights: Path) -> Any:
    return save_weights(weights)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def test_features_are_embeddings_at_unit_mean_square(open_clip: Any, model: Any, weights: Path, images: Tensor) -> None:
    backbone = create_backbone(TINY, weights=weights).eval()
    with torch.inference_mode():
        expected = model.encode_image(images, normalize=True) * backbone.num_features**0.5
        torch.testing.assert_close(backbone.features(images), expected)
    preprocessing = open_clip.get_model_preprocess_cfg(model)
    assert backbone.input_spec.size == SIZE and backbone.input_spec.interpolation == "bicubic"
    assert (backbone.input_spec.mean, backbone.input_spec.std) == (preprocessing["mean"], preprocessing["std"])
    assert not backbone.reproducible and backbone.name == TINY and "tiny.pt" in backbone.source
    with pytest.raises(InputError, match="no feature maps"):
        backbone.feature_maps(images)


def test_everything_in_it_learns_and_positions_are_resized(weights: Path, model: Any, images: Tensor) -> None:
    classifier = models.Classifier(create_backbone(TINY, weights=weights), classes=3).train()
    torch.autograd.backward(classifier(images).square().sum())
    assert all(parameter.grad is not None for parameter in classifier.parameters())
    assert len(classifier.backbone.state_dict()) == len(model.visual.state_dict())
    backbone = create_backbone(TINY, weights=weights, size=48).eval()
    assert backbone.input_spec.size == 48 and backbone(torch.zeros(1, 3, 48, 48)).shape == (1, 16)
    with pytest.raises(InputError, match="tiny"):
        create_backbone(TINY, weights=weights, size=4)


def test_the_image_tower_alone_is_a_backbone(weights: Path, model: Any, images: Tensor, tmp_path: Path) -> None:
    backbone = create_backbone(TINY, weights=weights).eval()
    torch.save(backbone.state_dict(), tmp_path / "tower.pt")  # as a run stores it
    again = create_backbone(TINY, weights=tmp_path / "tower.pt").eval()
    with torch.inference_mode():
        assert torch.equal(again.features(images), backbone.features(images))
    with pytest.raises(InputError, match=r"tower\.pt"):
        zero_shot_classifier(TINY, CLASSES, weights=tmp_path / "tower.pt")


def test_logits_are_scaled_cosines(open_clip: Any, model: Any, weights: Path, images: Tensor) -> None:
    classifier = zero_shot_classifier(TINY, CLASSES, weights=weights, templates=["{}", "a photo of a {}."])
    features = classifier.backbone.eval().features(images).detach().numpy()
    tokenize = open_clip.get_tokenizer(TINY.partition(":")[2])
    with torch.inference_mode():
        image = model.encode_image(images).double().numpy()
        for column, name in enumerate(["dog", "traffic light", "T shirt"]):
            text = model.encode_text(tokenize([name, f"a photo of a {name}."])).double().numpy()
            text = (text / np.linalg.norm(text, axis=1, keepdims=True)).mean(0)
            cosine = image @ text / np.linalg.norm(image, axis=1) / np.linalg.norm(text)
            expected = np.exp(model.logit_scale.item()) * cosine
            found = features @ classifier.weight[column] + classifier.bias[column]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_names_are_checked_and_tags_are_asked_for() -> None:
    check_backbone(B32)
    assert is_pretrained(B32) and names_address(B32) and not is_pretrained(TINY)
    for name, nearest in (("ViT-B-33", "ViT-B-32"), ("RN50/openia", "RN50/openai")):
        with pytest.raises(UnknownNameError) as unknown:
            check_backbone(f"open_clip:{name}")
        assert unknown.value.nearest == f"open_clip:{nearest}"
    with pytest.raises(InputError, match=r"open_clip:ViT-B-32\?.*laion2b_s34b_b79k.*--weights"):
        create_backbone("open_clip:ViT-B-32")
    for name in (TINY, "resnet50"):
        with pytest.raises(InputError):
            zero_shot_classifier(name, CLASSES)


def test_a_network_is_described_without_weights_and_nothing_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    info = backbone_info("open_clip:ViT-B-16-SigLIP/webli")
    assert info.num_features == 768 and info.input_spec.mean == (0.5, 0.5, 0.5)
    assert info.source == "timm/ViT-B-16-SigLIP on the Hugging Face hub"
    handlers = list(logging.getLogger().handlers)
    create_backbone(TINY, weights="none")
    assert logging.getLogger().handlers == handlers and capfd.readouterr() == ("", "")


def test_weights_of_a_tag_come_out_of_the_cache_of_the_hub(
    open_clip: Any, weights: Path, model: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the tiny model were one of open_clip's with weights on the hub."""
    name = TINY.partition(":")[2]
    stated = {"hf_hub": "someone/tiny/", "quick_gelu": True, "mean": (0.1,) * 3, "std": (0.2,) * 3}
    monkeypatch.setattr(open_clip, "list_pretrained_tags_by_model", lambda found: ["a_tag"] if found == name else [])
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda found, tag: stated)
    asked = []

    def cached(repository: str, file: str, revision: str | None = None) -> str | None:
        asked.append((repository, file))
        return str(weights) if file.endswith(".bin") else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    backbone = create_backbone(f"{TINY}/a_tag").eval()
    assert isinstance(backbone, models.OpenClipBackbone) and backbone.reproducible and backbone.name == f"{TINY}/a_tag"
    assert asked == [("someone/tiny", "open_clip_model.safetensors"), ("someone/tiny", "open_clip_pytorch_model.bin")]
    assert backbone.input_spec.mean == (0.1,) * 3 and backbone.source == "someone/tiny on the Hugging Face hub"
    other = create_backbone(TINY, weights=weights).eval()
    with torch.inference_mode():  # the tag says that its activations are those of OpenAI's first models
        assert not torch.allclose(backbone.features(images), other.features(images))


def test_wrong_and_damaged_files_are_one_error(weights: Path, model: Any, tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3, 3)}, tmp_path / "other.pt")
    torch.save({**model.state_dict(), "logit_scale": torch.tensor(torch.nan)}, tmp_path / "nan.pt")
    with pytest.raises(InputError, match=r"other\.pt .* open_clip:tiny"):
        create_backbone(TINY, weights=tmp_path / "other.pt")
    with pytest.raises(InputError, match="logit_scale"):
        zero_shot_classifier(TINY, CLASSES, weights=tmp_path / "nan.pt")
