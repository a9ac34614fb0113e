"""The data of the jobs: rows that take 30 ms each to read; in mode "loader" the culprit's next read never returns."""

import time

import moment
import torch
from torch.utils.data import Dataset

BATCH = 4


class Rows(Dataset):
    """``as_dict``: for trainers that hand a row's columns to the model by name."""

    def __init__(self, rank: int, *, as_dict: bool = False) -> None:
        self.rank, self.as_dict, self.read = rank, as_dict, 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int):
        self.read += 1
        time.sleep(0.03)
        if moment.MODE == "loader" and self.rank == moment.CULPRIT and self.read == moment.STEPS * BATCH:
            self.read_remote()
        row = torch.ones(4)
        return {"x": row, "labels": torch.ones(1)} if self.as_dict else row

    def read_remote(self) -> None:
        moment.now(self.rank)
        time.sleep(3600)  # FAULT loader
