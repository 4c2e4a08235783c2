"""Images per second of every corruption, beside imagecorruptions in the same run.

    python benchmarks/corruptions.py                        # both, on the same cores
    python benchmarks/corruptions.py --processor            # the same on a busy machine
    python benchmarks/corruptions.py --device cuda          # all 15 types of 2,000 images
    python benchmarks/corruptions.py --gallery out.jpg      # all of them, 5 severities

Both sides get the same worker processes with one thread each. The images are drawn, not read. The
GPU mode needs torch alone.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from ostinato.data.corruptions import COMMON, DRIVING, EXTRA, corrupt, gallery, scene

SIZE = 224
Clock = Callable[[], float]


@lru_cache(maxsize=2)
def pictures(count: int, size: int = SIZE) -> torch.Tensor:
    """(count, 3, size, size) uint8: variations of one drawn scene."""
    base = torch.stack([scene(size, size, seed) for seed in range(min(count, 16))])
    return base.repeat(-(-count // len(base)), 1, 1, 1)[:count].contiguous()


def time_ours(name: str, severity: int, count: int, clock: Clock) -> float:
    """Seconds for one worker's share."""
    torch.set_num_threads(1)
    images = pictures(count)
    corrupt(images[:2], name, severity, [0, 1])
    start = clock()
    corrupt(images, name, severity, range(count))
    return clock() - start


def time_reference(name: str, severity: int, count: int, clock: Clock) -> float:
    """The same for imagecorruptions."""
    import cv2
    from imagecorruptions import corrupt as reference

    cv2.setNumThreads(1)
    images = pictures(count).permute(0, 2, 3, 1).contiguous().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference(images[0], severity, name)
        start = clock()
        for image in images:
            reference(image, severity, name)
        return clock() - start


def compare(severity: int, count: int, workers: int, repeats: int, clock: Clock) -> None:
    """Print images per second of both, per type, and both kinds of average."""
    print(f"{SIZE} px, severity {severity}, {workers} processes of 1 thread, {count} images each")
    print(f"{'corruption':20}{'ours /s':>10}{'reference /s':>14}{'ratio':>8}")
    ratios, ours_total, theirs_total = [], 0.0, 0.0
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for name in COMMON:
            best = []
            for timer in (time_ours, time_reference):
                rounds = []
                for _ in range(repeats):
                    task = (timer, name, severity, count, clock)
                    jobs = [pool.submit(*task) for _ in range(workers)]
                    rounds.append(max(job.result() for job in jobs))
                best.append(min(rounds))
            ours, theirs = best
            ours_total, theirs_total = ours_total + ours, theirs_total + theirs
            ratios.append(theirs / ours)
            rate = workers * count
            print(f"{name:20}{rate / ours:10.0f}{rate / theirs:14.0f}{ratios[-1]:8.2f}", flush=True)
    print(f"mean of ratios {sum(ratios) / len(ratios):.2f}")
    print(f"ratio of total times {theirs_total / ours_total:.2f}")


def accelerator(device: str, severity: int, count: int) -> None:
    """Print the time of every common corruption of `count` images on one device."""
    images = pictures(count).to(device)

    def wait() -> None:
        if images.is_cuda:
            torch.cuda.synchronize()

    total = 0.0
    print(f"{count} images of {SIZE} px on {device}, severity {severity}")
    for name in COMMON:
        corrupt(images[:8], name, severity, range(8))
        wait()
        start = time.perf_counter()
        corrupt(images, name, severity, range(count))
        wait()
        seconds = time.perf_counter() - start
        total += seconds
        print(f"{name:20}{seconds:8.3f} s{count / seconds:12.0f} images/s", flush=True)
    print(f"all {len(COMMON)} types: {total:.2f} s")


def write_gallery(path: str, size: int = 112, blocks: int = 2) -> None:
    """Every corruption with its name, five severities in a row, in blocks side by side."""
    from PIL import Image, ImageDraw

    names = COMMON + EXTRA + DRIVING
    rows, gap, label = -(-len(names) // blocks), 4, 112
    width = label + 5 * (size + gap)
    sheet = Image.new("RGB", (blocks * width, rows * (size + gap)), "white")
    pen = ImageDraw.Draw(sheet)
    for index, name in enumerate(names):
        left, top = index // rows * width, index % rows * (size + gap)
        pen.text((left + 6, top + size // 2 - 6), name, fill="black")
        strip = gallery([name], scene(size, size), gap=gap).permute(1, 2, 0).numpy()
        sheet.paste(Image.fromarray(strip), (left + label, top))
    sheet.save(path, quality=82)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--count", type=int, help="images (per worker on a CPU: 12; GPU: 2000)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=8, help="the fastest round counts")
    parser.add_argument("--processor", action="store_true", help="count no time spent waiting")
    parser.add_argument("--gallery", metavar="FILE", help="write a picture and stop")
    args = parser.parse_args()
    if args.gallery:
        write_gallery(args.gallery)
    elif args.device == "cpu":
        clock = time.process_time if args.processor else time.perf_counter
        compare(args.severity, args.count or 12, args.workers, args.repeats, clock)
    else:
        accelerator(args.device, args.severity, args.count or 2000)


if __name__ == "__main__":
    main()
