"""Pages: their content is the prompt's, and the pool gives out none twice."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlatch.reference.live.pages import NoPages, Pool, content, digest_of


def test_the_content_is_a_function_of_prompt_and_page() -> None:
    """Equal prompts have equal pages; another prompt, or another page, has other bytes."""
    one = content("a prompt", 0, 64)
    assert len(one) == 64
    assert one == content("a prompt", 0, 64)
    assert len({one, content("a prompt", 1, 64), content("another", 0, 64)}) == 3


def test_a_pool_that_was_filled_has_the_digest_of_the_prompt() -> None:
    """The digest is over the pages in the order of the prompt, wherever they lie; one wrong byte shows."""
    pool = Pool(8, 64)
    pool.take(3)
    mine = pool.take(4)
    for page, place in enumerate(mine):
        pool.fill(place, content("a prompt", page, 64))
    assert pool.digest(mine) == digest_of("a prompt", 4, 64)
    assert (
        pool.digest(mine)
        == hashlib.blake2b(b"".join(content("a prompt", page, 64) for page in range(4)), digest_size=16).hexdigest()
    )
    pool.memory[mine[2], 5] ^= 1
    assert pool.digest(mine) != digest_of("a prompt", 4, 64)


def test_pages_that_were_given_back_last_are_taken_first() -> None:
    """So a page that is released too early is soon somebody else's."""
    pool = Pool(10, 8)
    first, _ = pool.take(3), pool.take(3)
    pool.give_back(first)
    assert pool.take(3) == first


@given(st.lists(st.integers(-4, 5), max_size=40))
def test_no_page_is_held_twice(moves: list[int]) -> None:
    """Whatever is taken and given back, a page has one holder, and a demand that cannot be met takes nothing."""
    pool, held = Pool(12, 1), list[list[int]]()
    for move in moves:
        if move < 0 and held:
            pool.give_back(held.pop(move % len(held)))
        elif move > 0:
            free = pool.free
            if move > free:
                with pytest.raises(NoPages, match=f"{move} pages are wanted, {free} are free"):
                    pool.take(move)
                assert pool.free == free
            else:
                held.append(pool.take(move))
        pages = [page for taken in held for page in taken]
        assert len(set(pages)) == len(pages) == 12 - pool.free
