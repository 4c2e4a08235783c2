"""Is one method better than another? The same stream, the same help, several seeds, intervals."""

from ostinato.running.runner import run
from ostinato.running.spec import Spec
from ostinato.scoring.compare import compare

# One stream for all: a corruption that returns. Every method sees the same images in the same
# order, and a run's folder says what help it had.
shared = {
    "model": "embedded",
    "roots": "embedded",
    "stream": "recurring",
    "data": {
        "dataset": "embedded",
        "domains": ["gaussian_noise"],  # a list of any length, for instance [fog, snow]
        "rounds": 2,
        "limit": 40,
    },
    "statistics": "embedded",
    "batch_size": 20,
    "seeds": (2025, 2026),
    "device": "cpu",
}
records = {}
for method, preset in (("source", None), ("tent", None), ("ostinato", "forward-only")):
    folders = run(Spec(method=method, preset=preset, **shared), out="runs", quiet=True)
    means = [folder.summary().mean for folder in folders]
    print(f"{method:10} error {sum(means) / len(means):.1f} % over seeds {means}")
    records[method] = folders[0].records()  # seed 2025, to be paired image by image

# Paired with the source model: what makes an image hard for every method cancels.
for found in compare(records, baseline="source", resamples=1000):
    print(f"{found.other} against source: {found.overall.difference} -> {found.verdict}")
