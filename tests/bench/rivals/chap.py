"""CHAP's published network with drawn weights: python chap.py FOLDER REPOSITORY.

Reads windows.npy (windows, rows, 3); writes weights.npz, and probabilities.npy of the second class of each step.  It
runs as a file, in an environment with PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

STEPS, EVERY = 42, 100
NAMES = {"cnn_model.": "", "bil_lstm.": "", "fc_bilstm.": "last.", "_l0": ""}  # parts of PyTorch's names


def main(folder: Path, repository: Path) -> None:
    import torch  # type: ignore[import-not-found]

    sys.path.insert(0, str(repository / "MSSE-2021"))
    from model import CNNBiLSTMModel  # type: ignore[import-not-found]

    torch.manual_seed(1)
    network = CNNBiLSTMModel(amp_factor=2, bi_lstm_win_size=STEPS, num_classes=2).eval()
    with torch.no_grad():
        for name, one in network.named_parameters():  # as drawn, all windows would have nearly the same probabilities
            one.mul_(3 if name.startswith("fc_bilstm") else 2)
        images = torch.from_numpy(np.load(folder / "windows.npy")).float().view(-1, 1, EVERY, 3)
        probabilities = torch.sigmoid(network(images)).numpy()
    weights = {}
    for name, one in network.state_dict().items():
        for part, short in NAMES.items():
            name = name.replace(part, short)
        if name.startswith("conv"):
            name = f"conv{int(name[4]) - 1}{name[5:]}"
        weights[name] = one.numpy()
    np.savez(folder / "weights.npz", **weights)
    np.save(folder / "probabilities.npy", probabilities.reshape(-1, STEPS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
