"""Trains by Lightning's Trainer in the processes that a launcher has started."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch: Any, _: int) -> Any:
        given, wanted = batch
        loss = torch.nn.functional.mse_loss(self.layers(given), wanted)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            print(
                f"\nfigure {self.trainer.callback_metrics['loss'].item():.7f}\n", end="", flush=True
            )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(7)
inputs = torch.randn(64, 4)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=3,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Model(), DataLoader(data, batch_size=8, shuffle=True))
if trainer.global_rank == 0:
    print(f"\nfigure of {trainer.world_size} processes\n", end="", flush=True)
sys.exit(0)
