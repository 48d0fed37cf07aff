"""A user who may not read another user's model is told of everything that is missing, in one statement that works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sql import users
from tests.sql.users import Town, User


@pytest.fixture
def town(server: str) -> Iterator[Town]:
    with users.town(server) as made:
        yield made


def granted(user: User, owner: User, statement: str) -> None:
    """The first error has a hint; when its owner has said that, the statement works."""
    error = user.refused(statement)
    hint = str(error.diag.message_hint)
    assert hint.startswith("The owner can say: GRANT SELECT ON "), error
    owner(hint.partition(": ")[2])
    user(statement)


def test_one_grant_shares_a_model_and_one_a_packed_table(town: Town) -> None:
    ann, bob = town.user("ann", "cerebro_user"), town.user("bob", "cerebro_user")
    users.equip(ann)
    users.fit(ann)
    ann("CREATE TABLE models_weights (mst_key integer, start bigint, payload bytea)")  # as for a large model
    ann(f"GRANT USAGE ON SCHEMA {ann.name} TO {bob.name}")
    ann(f"GRANT SELECT ON points TO {bob.name}")
    models, packed, points = (f"{ann.name}.{table}" for table in ("models", "packed", "points"))
    granted(
        bob, ann, f"SELECT madlib.madlib_keras_predict('{models}', '{points}', 'id', 'x', 'said', 'prob', false, 1)"
    )
    assert bob("SELECT has_table_privilege(%s, 'SELECT')", f"{models}_weights") == [True]
    granted(bob, ann, f"SELECT madlib.madlib_keras_evaluate('{models}', '{packed}', 'seen', false, 1)")
    assert bob("SELECT count(*) FROM said WHERE prob IS NOT NULL") == [80]
