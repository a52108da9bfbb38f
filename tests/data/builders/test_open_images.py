import json

import pytest

pytest.importorskip("tensorflow_datasets")

from heteroscedastic.data.builders import open_images

BODY, EYE, HAND = "/m/02p0tk3", "/m/014sv8", "/m/0k65p"
HIERARCHY = {
    "LabelName": "entity",
    "Subcategory": [
        {
            "LabelName": "bicycle",
            "Part": [{"LabelName": "wheel", "Subcategory": [{"LabelName": "spoked"}]}],
        },
        {"LabelName": "toy", "Subcategory": [{"LabelName": "ball"}, {"LabelName": "mug"}]},
        {"LabelName": "ball", "Subcategory": [{"LabelName": "football"}]},
        {"LabelName": "cup"},
        {"LabelName": "person", "Part": [{"LabelName": BODY, "Part": [{"LabelName": EYE}]}]},
        {"LabelName": EYE},
        {"LabelName": HAND},
        {"LabelName": BODY, "Part": [{"LabelName": HAND}]},
    ],
}
NAMES = ["cup", "ball", BODY, "spoked", "wheel", "mug", EYE, "toy", "person", "bicycle", "football"]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "hierarchy.json"
    path.write_text(json.dumps(HIERARCHY))
    return path


def test_classes_are_leaves_everywhere_in_the_hierarchy_and_no_parts_of_the_human_body(path):
    names, numbers = open_images.classes([*NAMES, HAND], path, merged={})
    assert names == ["cup", "spoked", "mug", "person", "bicycle", "football"]
    for name, number in zip([*NAMES, HAND], numbers):
        assert number == (names.index(name) if name in names else -1)


def test_a_merged_class_has_the_number_of_the_class_that_takes_its_boxes(path):
    merged = {"cup": ("mug", "a synonym"), "person": (EYE, "of a dropped class: ignored")}
    names, numbers = open_images.classes(NAMES, path, merged=merged)
    assert names == ["spoked", "mug", "person", "bicycle", "football"]
    assert numbers[NAMES.index("cup")] == numbers[NAMES.index("mug")] == names.index("mug")
    assert numbers[NAMES.index("person")] == names.index("person")


def test_the_report_counts_dropped_classes_by_reason_and_names_merged_ones(path):
    merged = {"cup": ("mug", "Cup, a synonym of Mug"), "person": (EYE, "ignored")}
    assert open_images.report(NAMES, path, merged).splitlines() == [
        "11 classes with boxes: 5 dropped, 1 merged",
        "dropped: 3 have subcategories",
        "dropped: 2 are the human body and its parts, whose boxes are not exhaustive",
        "merged: cup into mug: Cup, a synonym of Mug",
    ]
    kept, _ = open_images.classes(NAMES, path, merged)
    assert len(kept) == 11 - 5 - 1


def test_merged_classes_are_no_chains():
    targets = {new for new, _ in open_images.MERGED.values()}
    assert not targets & set(open_images.MERGED)
    assert all(reason for _, reason in open_images.MERGED.values())


@pytest.mark.parametrize("text", ["{", "[]", "[1]", '{"Subcategory": []}', "null", None])
def test_a_file_that_is_no_hierarchy_is_one_line(tmp_path, text):
    if text is not None:  # else it is missing
        (tmp_path / "h.json").write_text(text)
    with pytest.raises(ValueError, match=r"h.json is not a hierarchy of classes") as caught:
        open_images.classes(NAMES, tmp_path / "h.json")
    assert "\n" not in str(caught.value)


def test_a_hierarchy_of_other_classes_is_one_line(path):
    with pytest.raises(ValueError, match=r"lacks 1 of the 12 classes with boxes, such as sword"):
        open_images.classes([*NAMES, "sword"], path)
