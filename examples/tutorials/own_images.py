"""Your own pictures in folders, your own domains, one run and its report."""

from pathlib import Path

from PIL import Image

from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import CLASSES, embedded_images
from ostinato.report.command import write_report
from ostinato.running.runner import run
from ostinato.running.spec import Spec

# Stand-ins for your folders: pictures/day/cat/0.png and so on. With pictures of your own,
# leave this part out.
images, labels, _ = embedded_images("test")
chosen = list(range(60))
looks = {
    "day": images[chosen],
    "night": (images[chosen].float() * 0.2).byte(),
    "rain": corrupt(images[chosen], "impulse_noise", 5, seeds=chosen, constants="cifar"),
}
for domain, shown in looks.items():
    for number, picture in zip(chosen, shown, strict=True):
        place = Path("pictures", domain, CLASSES[int(labels[number])])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(place / f"{number}.png")

# A stream of your domains that come back. Class folders meet the model's outputs by name; they may
# be fewer than the outputs.
data = {
    "dataset": "folder",
    "domains": ["pictures/day", "pictures/night", "pictures/rain"],
    "rounds": 2,
}
folders = []
for method, preset in (("source", None), ("ostinato", "forward-only")):
    spec = Spec(
        model="embedded",
        stream="recurring",
        data=data,
        method=method,
        preset=preset,
        statistics="embedded",  # of your model: a file from 'ostinato prepare statistics'
        batch_size=20,
        device="cpu",
    )
    (folder,) = run(spec, out="runs", quiet=True)
    folders.append(folder.path)
    print(f"{method}: error {folder.summary().mean:.1f} %")
print(write_report(folders, "report.html", "My domains"))
