"""The live system: two engines, real transfers and a real router, and the abort storm that is run against them.

Read ``manager.py`` (the status manager, by hand, for any design), then ``prefill.py`` (the threads around it) and
``decode.py``; ``transport.py``, ``pages.py``, ``server.py`` and ``engine.py`` are what they stand on, ``journal.py`` and
``ledger.py`` what they write down. ``system.py`` starts it all with ``router.py`` in front. ``storm.py`` blows, with the
``load.py`` and ``clients.py``, on a system of ours or on a ``foreign.py`` one; ``records.py`` is what it leaves, and
``verdict.py`` what that means.

``manager``, ``journal``, ``ledger``, ``load``, ``pages``, ``records``, ``settings`` and ``verdict`` import nothing
beyond the package's own dependencies; the others need the extra ``live``.
"""
