"""NCCL's RAS, asked over its own socket at somebody's word only; its answers in each of its dialects. Python 3.9."""
