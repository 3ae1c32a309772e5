"""Fine-tuning on other words than those of the pre-training: lists of both, and the model with the weights.

    python benchmarks/tasks/fine_tuning.py grid_words     # writes the lists into the folder that `grid_words.py` made
    lightning-multigrid fit --config $TASKS/grid_words.yaml --config $TASKS/on_grid_words/pretraining.yaml
    python benchmarks/tasks/run.py grid_few --rows default

`$TASKS` is `benchmarks/tasks`; all run in the folder that holds `grid_words`. The words are sorted, and those at even
places are the half of the pre-training. `few` has every eighth video of the others.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from lightning_multigrid.models import small_cnn


def pretrained_cnn(weights: str, num_classes: int) -> nn.Module:
    """`small_cnn` with the weights of a checkpoint of `fit`, but for the classifier's last layer."""
    model = small_cnn(num_classes)
    state = torch.load(weights, weights_only=True, map_location="cpu")["state_dict"]
    known = {name.removeprefix("model."): value for name, value in state.items() if "projection" not in name}
    missing, _ = model.load_state_dict(known, strict=False)
    if missing != ["projection.weight", "projection.bias"]:
        raise ValueError(f"{weights} lacks {', '.join(missing)}. Give a checkpoint of `small_cnn`.")
    return model


def write_lists(folder: Path) -> None:
    """Writes `first_`, `other_train.txt`, the same of `val`, and `few_train.txt`, of `path word`."""
    for part in ("train", "val"):
        words = sorted(path for path in (folder / part).iterdir() if path.is_dir())
        for half, name in enumerate(("first", "other")):
            videos = [video for word in words[half::2] for video in sorted(word.glob("*.mp4"))]
            lines = [f"{video.relative_to(folder)} {video.parent.name}\n" for video in videos]
            (folder / f"{name}_{part}.txt").write_text("".join(lines))
            if (name, part) == ("other", "train"):
                (folder / "few_train.txt").write_text("".join(lines[::8]))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder that `grid_words.py` made")
    write_lists(parser.parse_args(given).folder)


if __name__ == "__main__":
    main()
