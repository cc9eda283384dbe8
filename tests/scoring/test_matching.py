"""Which output a class of the data means."""

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.scoring.matching import imagenet_ids, is_imagenet, match_classes


def imagenet_names() -> list[str]:
    from torchvision.models import ViT_B_16_Weights

    return list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])


def test_names_are_matched_exactly_before_anything_else() -> None:
    assert match_classes(["b", "a"], ["a", "b", "c"]).tolist() == [1, 0]
    assert match_classes(["Rose", "rose"], ["rose", "Rose"]).tolist() == [1, 0]


@pytest.mark.parametrize("spelling", ["sun flower", "Sun_Flower", "sun-flower", " SUN  flower "])
def test_case_spaces_and_dashes_make_no_difference(spelling: str) -> None:
    assert match_classes(["tulip", spelling], ["sun flower", "tulip"]).tolist() == [1, 0]


def test_a_class_that_the_model_lacks_shifts_no_other() -> None:
    assert match_classes(["a", "oak", "b"], ["b", "a"]).tolist() == [1, -1, 0]


def test_what_could_mean_two_things_is_refused() -> None:
    with pytest.raises(DataError, match="outputs 0 and 1"):
        match_classes(["crane"], ["Crane", "CRANE"])
    with pytest.raises(DataError, match="'Rose', 'rose' mean the model's class 'rose' alike"):
        match_classes(["Rose", "rose"], ["rose"])


def test_a_list_that_is_the_models_own_is_matched_though_names_repeat() -> None:
    assert match_classes(["crane", "crane"], ["crane", "crane"]).tolist() == [0, 1]


def test_positions_count_only_when_asked_for() -> None:
    assert match_classes(["x", "y"], ["0", "1"]).tolist() == [-1, -1]
    assert match_classes(["x", "y"], ["0", "1"], in_order=True).tolist() == [0, 1]
    with pytest.raises(DataError, match="2 classes cannot be matched in order to 3 outputs"):
        match_classes(["x", "y"], ["0", "1", "2"], in_order=True)


def test_the_wordnet_ids_are_imagenets_in_its_order(imagenet_classes: list[tuple[str, str]]) -> None:
    assert imagenet_ids() == [wordnet for wordnet, _ in imagenet_classes]


def test_timm_has_the_same_ids_and_its_descriptions_are_recognised() -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
    info = timm.data.ImageNetInfo("imagenet-1k")
    assert imagenet_ids() == info.label_names()
    assert is_imagenet(info.label_descriptions())
    assert is_imagenet(info.label_names())


def test_folders_of_wordnet_ids_find_the_outputs_of_an_imagenet_model() -> None:
    assert match_classes(imagenet_ids(), imagenet_names()).tolist() == list(range(1000))
    some = ["n01440764", "n15075141", "n99999999"]
    assert match_classes(some, imagenet_names()).tolist() == [0, 999, -1]


def test_a_thousand_other_classes_are_not_imagenets() -> None:
    names = imagenet_names()
    assert not is_imagenet(names[::-1])
    assert not is_imagenet(names[:999])
    assert not is_imagenet([str(k) for k in range(1000)])
    assert (match_classes(imagenet_ids(), names[::-1]) == -1).all()


def test_every_permutation_of_names_is_followed() -> None:
    model = imagenet_names()
    order = np.random.default_rng(0).permutation(1000)
    assert match_classes([model[k] for k in order], model).tolist() == order.tolist()
    clear = [k for k in order if model[k].lower() != "cardigan"]
    assert match_classes([model[k].upper().replace(" ", "_") for k in clear], model).tolist() == clear


def test_a_cardigan_is_a_dog_and_a_garment() -> None:
    model = imagenet_names()
    assert match_classes(["Cardigan", "cardigan"], model).tolist() == [264, 474]
    with pytest.raises(DataError, match="'CARDIGAN' could be any of the model's outputs 264 and 474"):
        match_classes(["CARDIGAN"], model)
