from collections.abc import Iterator

import pytest
from serving import TEXT, Served, ids, serving


@pytest.fixture(scope="module")
def hello() -> Iterator[Served]:
    """A server that answers every request with the same text and then ends."""
    with serving(ids(TEXT)) as served:
        yield served
