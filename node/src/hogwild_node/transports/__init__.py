"""Networks: memory (seeded, for tests), plain UDP, Zenoh."""
