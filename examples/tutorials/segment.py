"""Adapt a model that predicts per pixel, and score it by mIoU."""

import torch

import ostinato
from ostinato.data.mosaic import clear_mosaics, mosaic_model, weather_mosaics
from ostinato.scoring.metrics import mean_iou, score_pixels

# A segmenter and clear frames. Here: mosaics of small pictures, labelled tile by tile. With your
# own: any module that returns (batch, classes, height, width) logits, such as a SegFormer.
model = mosaic_model("cpu")
clear = clear_mosaics()
frames = torch.stack([clear.image(n) for n in range(25)])

statistics = ostinato.collect_statistics(model, frames, batch_size=10)
adapted = ostinato.adapt(model, statistics=statistics, preset="forward-only")

weather = weather_mosaics()
for domain in ("night",):  # and fog, rain, snow
    confusion = {"source": torch.zeros(10, 10), "adapted": torch.zeros(10, 10)}
    for numbers in torch.tensor(weather.indices(domain)).split(5):  # five cameras, say
        images = torch.stack([weather.image(int(n)) for n in numbers])
        labels = torch.stack([weather.label(int(n)).long() for n in numbers])
        with adapted.frozen():
            adapted.predict(images, source=True)
            answers = {"source": adapted.last.source_logits}
        answers["adapted"] = adapted(images)
        for name, logits in answers.items():
            counts, _ = score_pixels(logits, labels)
            confusion[name] += torch.tensor(counts).sum(0).view(10, 10)
    scores = {name: 100 * float(mean_iou(counts)) for name, counts in confusion.items()}
    print(f"{domain}: source {scores['source']:.1f} % mIoU, adapted {scores['adapted']:.1f} %")
