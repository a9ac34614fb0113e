"""Ray Train: its workers are actors, whose rank stands only in what they set after they have started."""

import sys
from pathlib import Path

import ray
from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer

HERE = str(Path(__file__).parent)


def train_worker() -> None:
    sys.path.insert(0, HERE)
    import ddp

    ddp.train(get_context().get_world_rank())


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    ray.init(num_cpus=ranks + 1, include_dashboard=False, configure_logging=False, object_store_memory=100 * 2**20)
    scaling = ScalingConfig(num_workers=ranks, use_gpu=False, resources_per_worker={"CPU": 1})
    TorchTrainer(train_worker, scaling_config=scaling, torch_config=TorchConfig(backend="gloo")).fit()
