"""A page on which one watches nodes compute: ``hogwild serve``.

* :mod:`~hogwild.web.worlds`: points, edges, features, and what nodes should find out.
* :mod:`~hogwild.web.shelf`: the trained models that come with the package.
* :mod:`~hogwild.web.side`: a model and a rule on a world that changes.
* :mod:`~hogwild.web.session`: two sides for one viewer, in a thread.
* :mod:`~hogwild.web.protocol`: what page and server say to each other, checked.
* :mod:`~hogwild.web.server`: the server. Only this module needs the extra ``[web]``.
"""
