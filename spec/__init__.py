"""What is true: statuses, merges, protocols, designs, properties. Read in this order.

 1. ``status``      the five statuses of a room, and the two ways of having none
 2. ``merges``      what one status write does to one entry, rule by rule
 3. ``designs``     the open questions, and each design's answers
 4. ``protocol``    the room: every atomic step of every actor, a row each
 5. ``properties``  the twelve claims about every run of a room
 6. ``lemmas``      what is true of every reachable state of the recommended design, so that it can be proved
 7. ``room``        2 to 6 as one value: the room protocol, with its sizes and its worlds
 8. ``ranks``       the second protocol, all of it: the ranks of one server agree on a request by a vote
 9. ``decode``, ``router``, ``stages``, ``lease``   the others, each in a file of its own
    ``contract``    two of them side by side, and what each relies on
10. ``schema``      what a protocol consists of, whichever it is
11. ``protocols``   every protocol that ships, by name
12. ``timing``      instants and durations, for protocols in which lengths of time are compared
13. ``steps``       from rows to the steps of an instance; split and cas updates
14. ``model``       the model of an instance, and the concrete semantics: one state, one step
15. ``traces``      runs as ITF JSON files
16. ``terms``       the small language in which 3 to 9 are written

To understand kvlatch, read 1 to 5; to add a protocol, 8 and 10.

Nothing here is imported but attrs and the standard library.
"""

if __name__ != "kvlatch.spec":  # as at the root of a checkout, where two copies of every class would be made
    raise ImportError("import kvlatch.spec, not spec: its KVPoll would not be that of kvlatch")
