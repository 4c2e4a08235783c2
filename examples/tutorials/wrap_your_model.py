"""Wrap a model, meet a shift, see what is decided, save and take the model back."""

import ostinato
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import embedded_images, embedded_model

# Your model and some of the images it was made for. Here: the package's own.
model = embedded_model()
clean_images = embedded_images("tune")[0][:300]  # (300, 3, 32, 32), uint8

# 1. Once, before deployment: what features and images are like without a shift.
statistics = ostinato.collect_statistics(model, clean_images)
statistics.save("statistics.safetensors")

# 2. Wrap it. `adapted` is called as the model was.
adapted = ostinato.adapt(model, statistics="statistics.safetensors")
print(adapted.summary())

# 3. Traffic: ordinary images first, then pixelated ones.
images, labels, _ = embedded_images("test")
coarse = corrupt(images[:100], "pixelate", 5, seeds=range(100), constants="cifar")
for name, shown in (("ordinary", images[150:175]), ("pixelated", coarse)):
    truth = labels[150:175] if name == "ordinary" else labels[:100]
    right = source_right = 0
    for pixels, answer in zip(shown.split(25), truth.split(25), strict=True):
        with adapted.frozen():  # the source model's own answer, for comparison; learns nothing
            adapted.predict(pixels, source=True)
            source_right += int((adapted.last.source_logits.argmax(1) == answer).sum())
        logits = adapted(pixels)  # routes each image, predicts, adapts
        right += int((logits.argmax(1) == answer).sum())
    print(
        f"{name}: source {source_right / len(truth):.0%} right, adapted {right / len(truth):.0%}, "
        f"last batch in domain {adapted.last.domain} with trust {max(adapted.last.trust):.1f}"
    )

# 4. Keep what was learned, and take the original model back, bit for bit.
adapted.save("state.safetensors")
again = ostinato.unwrap(adapted)
assert again is model
