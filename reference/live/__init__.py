"""The live system: two engines, real transfers and a real router, and the abort storm that is run against them.

Read ``manager.py`` first (the status manager, by hand, for any design), then ``prefill.py``, the threads around it, and
``decode.py``. They stand on ``transport.py``, ``pages.py``, ``server.py`` and ``engine.py``; what they write down is in
``journal.py`` and ``ledger.py``. ``system.py`` starts it all, with ``router.py`` in front. ``storm.py`` blows: what is
asked is in ``load.py``, who asks in ``clients.py``, somebody else's deployment in ``foreign.py``. ``records.py`` is
what a storm leaves, and ``conclusion.py`` what that means.

``conclusion``, ``journal``, ``ledger``, ``load``, ``pages``, ``records`` and ``settings`` import nothing
beyond the package's own dependencies; the others need the extra ``live``.
"""
