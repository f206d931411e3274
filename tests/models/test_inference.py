from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from labelgap.models import Classifier, EfficientNetLite, SmallCNN, inference
from labelgap.models.inference import FoldedEfficientNet, inference_backbone, inference_network, inference_precision
from labelgap.models.info import LITE0, Precision

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backbone() -> EfficientNetLite:
    return EfficientNetLite(LITE0).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    coarse = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, size=(65, 96), mode="bilinear")


@pytest.fixture
def float32() -> Iterator[None]:
    with patch.object(inference, "cpu_precision", lambda: "float32"):
        yield


@torch.no_grad()
def test_folded_batch_norms_give_the_same_feature_maps(backbone: EfficientNetLite, images: Tensor) -> None:
    folded = FoldedEfficientNet(backbone)
    torch.testing.assert_close(folded.feature_maps(images), backbone.feature_maps(images), rtol=1e-4, atol=1e-4)
    assert folded.name == backbone.name and folded.input_spec == backbone.input_spec
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in folded.modules())


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_16_bits_change_little(backbone: EfficientNetLite, images: Tensor, precision: Precision) -> None:
    expected = backbone.features(images[:1, :, :33, :33])
    found = FoldedEfficientNet(backbone, precision).features(images[:1, :, :33, :33])
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < (0.05 if precision == "float16" else 0.15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_relu6_of_16_bits_is_exact(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    values = values[~values.isnan()]
    expected = values.float().clamp(0, 6)
    assert torch.equal(inference._relu6_(values).float(), expected)


def test_weights_beyond_16_bits_stay_in_32(backbone: EfficientNetLite) -> None:
    large = EfficientNetLite(LITE0, pretrained=False)
    with torch.no_grad():
        large.stem.norm.bias.fill_(1e5)
    assert FoldedEfficientNet(large, "float16").dtype == torch.float32
    assert FoldedEfficientNet(backbone, "float16").dtype == torch.float16


@torch.no_grad()
def test_a_copy_is_made_once_and_again_after_a_change(images: Tensor, float32: None) -> None:
    changing = EfficientNetLite(LITE0, pretrained=False).eval()
    first = inference_backbone(changing, CPU)
    assert inference_backbone(changing, CPU) is first
    changing.top.norm.bias.add_(1)
    second = inference_backbone(changing, CPU)
    torch.testing.assert_close(second.features(images), changing.features(images), rtol=1e-4, atol=1e-4)
    assert second is not first


@torch.no_grad()
def test_a_linear_head_scores_these_features(backbone: EfficientNetLite, images: Tensor, float32: None) -> None:
    network = Classifier(backbone, 3, average_flips=True).eval()
    found = inference_network(network, CPU, None)
    torch.testing.assert_close(found(images), network(images), rtol=1e-4, atol=1e-4)
    assert found.head is network.head and network.backbone is backbone
    other = Classifier(SmallCNN(), 3)
    assert inference_network(other, CPU, None).backbone is other.backbone


@pytest.mark.parametrize(
    ("capabilities", "acl", "onednn", "expected"),
    [
        ({"fp16_arith": True, "bf16": True}, True, True, "float16"),
        ({"fp16_arith": False}, True, True, "float32"),
        ({"fp16_arith": True}, False, True, "float32"),
        ({"avx512_f": True, "avx512_bf16": True}, False, True, "bfloat16"),
        ({"amx_bf16": True}, False, True, "bfloat16"),
        ({"avx512_bf16": True, "amx_bf16": True}, False, False, "float32"),
        ({"avx512_f": True, "avx512_fp16": True, "avx512_bf16": False}, False, True, "float32"),
        (None, True, True, "float32"),
    ],
)
def test_the_precision_is_the_cpus(
    capabilities: dict[str, bool] | None, acl: bool, onednn: bool, expected: str
) -> None:
    def ask() -> dict[str, bool]:
        if capabilities is None:
            raise AttributeError("get_capabilities")  # an older PyTorch
        return capabilities

    with (
        patch.object(torch.cpu, "get_capabilities", ask, create=True),
        patch.object(torch.ops.mkldnn, "_is_mkldnn_acl_supported", lambda: acl),
        patch.object(torch.backends.mkldnn, "is_available", lambda: onednn),
    ):
        assert inference.cpu_precision.__wrapped__() == expected


def test_features_have_the_precision_of_their_head_where_the_cpu_computes_with_it(backbone: EfficientNetLite) -> None:
    wanted: tuple[Precision | None, ...] = (None, "bfloat16", "float16", "float32")
    with patch.object(inference, "cpu_precision", lambda: "bfloat16"):
        fast = [inference_backbone(backbone, CPU, each) for each in wanted]
        names = [inference_precision("efficientnet-lite2", CPU, each) for each in wanted]
        elsewhere = [inference_precision("efficientnet-lite2", device) for device in (torch.device("cuda"), None)]
        others = [inference_precision(each, CPU) for each in ("resnet50", SmallCNN())]
    assert names == ["bfloat16", "bfloat16", "float32", "float32"] and {*elsewhere, *others} == {"float32"}
    assert [each.dtype for each in fast if isinstance(each, FoldedEfficientNet)] == [getattr(torch, it) for it in names]
