"""check finds tasks that nothing would ever make ready, and repair does."""

from __future__ import annotations

import pytest

import penstock
from tests.damage import STRANDED, fill_stranded, must_mend_stranded
from tests.mysql.conftest import Connection


@pytest.mark.parametrize("state", STRANDED)
def test_a_stranded_task_is_found_and_made_ready(broker: penstock.Broker, own: Connection, state: str) -> None:
    own.cursor().execute(fill_stranded(broker, state))
    must_mend_stranded(broker, state)
