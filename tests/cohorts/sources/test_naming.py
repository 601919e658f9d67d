"""Masks find their images by the names that data sets really give them."""

from pathlib import Path

import pytest
from cohort_files import touch

from silodp.cohorts.sources.folder import Folder
from silodp.cohorts.sources.naming import matched
from silodp.errors import InputError


def pairs(images: list[str], masks: list[str], template: str | None = None) -> dict[str, str]:
    return {mask: image for mask, (image, _) in matched(images, masks, template).items()}


@pytest.mark.parametrize(
    ("image", "mask", "way"),
    [
        ("{}", "{}", "equal names"),
        ("{}", "{}_seg", "the ending _seg"),
        ("{}", "{}-Disc-Avg", "the ending -Disc-Avg"),
        ("{}", "{}_manual1", "the ending _manual1"),
        ("{}", "mask_{}", "the beginning mask_"),
        ("{}", "{}Mask", "the ending Mask"),
        ("p/{}", "p/{}_lesion", "the ending _lesion"),
        ("{}_training", "{}_manual1", "_manual1 in place of _training"),
        ("img_{}", "gt_{}", "gt_ in place of img_"),
        ("ISIC_{}", "ISIC_{}_segmentation", "the ending _segmentation"),
    ],
)
def test_names_of_real_data_sets(image: str, mask: str, way: str) -> None:
    numbers = [str(number) for number in range(1, 22)]
    images, masks = ([form.format(number) for number in numbers] for form in (image, mask))
    found = matched(images, masks)
    assert {name: ours for name, (ours, _) in found.items()} == dict(zip(masks, images, strict=True))
    assert {how for _, how in found.values()} == {way}


def test_a_number_is_no_beginning_of_another() -> None:
    assert pairs(["1", "2"], ["10", "20"]) == {}
    assert pairs(["1", "10"], ["10_x", "1_x"]) == {"1_x": "1", "10_x": "10"}
    assert pairs(["x"], ["xy"]) == {}  # one is no habit
    assert pairs(["x"], ["x_y"]) == {"x_y": "x"}


def test_a_template_chooses_among_several_readers() -> None:
    images = ["Image_01L", "Image_01R"]
    masks = [f"{image}_{reader}HO" for image in images for reader in ("1st", "2nd")]
    assert pairs(images, masks, "{}_2ndHO") == {
        "Image_01L_2ndHO": "Image_01L",
        "Image_01R_2ndHO": "Image_01R",
    }
    drive = pairs(["21_training", "22_training"], ["21_manual1", "22_manual1", "21_manual2"], "{}_manual1")
    assert drive == {"21_manual1": "21_training", "22_manual1": "22_training"}


def test_a_folder_says_how_masks_were_matched_and_names_what_was_not(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "A/images/1.png", "A/images/2.png", "A/images/3.png", "A/masks/1-cup.png", "A/masks/2-cup.png",
        "A/masks/9.png", "B/images/4.png", "B/masks/4.png",
    )  # fmt: skip
    catalogue = Folder().scan(tmp_path)
    assert catalogue.layout.endswith("; masks known by the ending -cup (2), equal names (1)")
    assert {problem.name for problem in catalogue.problems} == {"A/images/3.png", "A/masks/9.png"}
    with pytest.raises(InputError, match=r"cohort\.mask_name = _cup: write \{\} once"):
        Folder(mask_name="_cup").scan(tmp_path)


def test_two_readers_are_two_masks_until_somebody_chooses(tmp_path: Path) -> None:
    for image in ("1", "2"):
        touch(tmp_path, f"images/{image}.png", f"masks/{image}_1stHO.png", f"masks/{image}_2ndHO.png")
    assert len(Folder().scan(tmp_path).problems) == 2
    chosen = Folder(mask_name="{}_2ndHO").scan(tmp_path)
    assert chosen.problems == ()
    assert [scan.files[1].name for scan in chosen.scans] == ["1_2ndHO.png", "2_2ndHO.png"]
