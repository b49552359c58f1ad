"""A page on which one watches nodes compute: ``hogwild serve``.

* :mod:`~hogwild.web.worlds`: points, edges, features, and what nodes should find out.
* :mod:`~hogwild.web.pretrained`: the trained models that come with the package.
* :mod:`~hogwild.web.side`: a model and a rule on a world that changes.
* :mod:`~hogwild.web.stage`: two sides on one world, and what a viewer can do to them.
* :mod:`~hogwild.web.session`: a stage for one viewer, in a thread.
* :mod:`~hogwild.web.watch`: agents that run elsewhere, which a viewer only watches.
* :mod:`~hogwild.web.polling`: agents at addresses, and what they say of themselves.
* :mod:`~hogwild.web.protocol`: what page and server say to each other, checked.
* :mod:`~hogwild.web.server`: the server, and who may speak to it. It needs the extra ``[web]``.
* :mod:`~hogwild.web.show`: what the server shows, and the page from Python.
"""
