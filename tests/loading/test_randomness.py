from lightning_multigrid.loading.randomness import derive_seed


def test_seeds_differ_by_every_part():
    seeds = {derive_seed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert derive_seed(7, 3) == 1702691837176849629  # the same on every machine
