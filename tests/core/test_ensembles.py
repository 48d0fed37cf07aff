"""The architecture of an ensemble: the allow-list takes it, and members that do not fit are refused."""

from __future__ import annotations

import json

import pytest
from test_building import CODES, KIND, NUMBERS, PRICE, layout

from cerebro_db.core.architecture import building, keras_json
from cerebro_db.core.architecture.ensembles import ensemble, members_of
from cerebro_db.core.errors import Unsupported


@pytest.mark.parametrize("outputs", [(KIND,), (PRICE, KIND)], ids=len)
def test_the_allow_list_takes_it(outputs: tuple[object, ...]) -> None:
    members = [building.architecture(kind, layout([NUMBERS, CODES], *outputs), None, "x") for kind in ("mlp", "resnet")]  # type: ignore[arg-type]
    read = keras_json.architecture(json.dumps(ensemble([*members, members[0]])))
    assert keras_json.outputs(read) == keras_json.outputs(members[0])
    inner = [one for one in read["config"]["layers"] if one["class_name"] == "Functional"]
    assert [one["name"] for one in inner] == ["member_1", "member_2", "member_3"]
    assert [one["config"]["layers"] for one in inner[:2]] == [one["config"]["layers"] for one in members]


def test_each_member_is_in_the_mean_once() -> None:
    one = building.architecture("mlp", layout([NUMBERS], PRICE), None, "x")
    read = keras_json.architecture(json.dumps(ensemble([one, one])))
    (mean,) = [layer for layer in read["config"]["layers"] if layer["class_name"] == "Average"]
    text = json.dumps(mean["inbound_nodes"])
    assert text.count("member_1") == text.count("member_2") == 1


def test_the_members_are_found_in_it() -> None:
    """They can be trained alone, as they were."""
    members = [building.architecture(kind, layout([NUMBERS, CODES], KIND), None, "x") for kind in ("mlp", "resnet")]
    found = members_of(keras_json.architecture(json.dumps(ensemble(members))))
    for one, member in zip(found, members):
        read = keras_json.architecture(json.dumps(one))
        assert read["config"]["layers"] == keras_json.architecture(json.dumps(member))["config"]["layers"]
    assert len(found) == 2 and members_of(members[0]) == []


def test_members_that_do_not_fit_are_refused() -> None:
    one = building.architecture("mlp", layout([NUMBERS], KIND), None, "x")
    other = building.architecture("mlp", layout([NUMBERS, CODES], KIND), None, "x")
    with pytest.raises(Unsupported, match="the inputs or outputs of the members differ"):
        ensemble([one, other])
    with pytest.raises(Unsupported, match="Sequential"):
        ensemble([one, {"class_name": "Sequential", "config": {"layers": []}}])
