"""What tests of certificates share."""

from helpers import graphs

CERTIFIED = {"rule": "gradient", "step": "certified"}


def data(sizes=(5, 9), **options):
    return graphs(sizes, **options)
