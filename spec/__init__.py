"""What is true: statuses, merges, the room protocol, designs, properties. Read in this order.

1. ``status``      the five statuses of a room, and the two ways of having none
2. ``merges``      what one status write does to one entry, rule by rule
3. ``designs``     the open questions, and each design's answers
4. ``protocol``    every atomic step of every actor, a row each
5. ``properties``  the twelve claims about every run
6. ``model``       from rows to the steps of an instance; split and cas updates; the concrete semantics
7. ``traces``      runs as ITF JSON files
8. ``terms``       the small language in which 3 to 5 are written

Nothing here is imported but attrs and the standard library.
"""

if __name__ != "kvlatch.spec":  # as at the root of a checkout, where two copies of every class would be made
    raise ImportError("import kvlatch.spec, not spec: its KVPoll would not be that of kvlatch")
