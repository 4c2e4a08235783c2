"""Images per second and peak memory of a step, beside the forward alone, in one run.

    python benchmarks/step.py                                             # ViT-Tiny on this machine
    python benchmarks/step.py --model vit_base_patch16_224 --precision bf16 --device cuda

The same as `ostinato speed`.
"""

from __future__ import annotations

import tyro

from ostinato.cli.speed import speed_command

if __name__ == "__main__":
    tyro.cli(speed_command)
