"""Put a model behind HTTP, let a camera speak, kill the server, and find everything again."""

import subprocess
import sys
import time
from pathlib import Path

import ostinato
from ostinato.client import Client
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import STATISTICS, asset_path, embedded_images, embedded_model

# 1. What is served, and how much a crash may lose. Without a file, `ostinato serve` does the same
# on port 8000. The embedded model brings its statistics; yours needs `statistics: FILE`.
Path("serve.yaml").write_text(
    """
port: 0                    # any free one
data: states               # states, events and keys
threads: 1
snapshots: {seconds: 1}
streams:
  gate: {}
  yard: {frozen: true}     # answers, and learns nothing
"""
)


def start() -> tuple[subprocess.Popen[str], str]:
    """The same as `ostinato serve serve.yaml` in a shell; it tells its address."""
    command = [sys.executable, "-c", "from ostinato.cli import main; main()", "serve", "serve.yaml"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = [server.stderr.readline().strip() for _ in range(2)]
    print("\n".join(f"server: {line}" for line in said))
    return server, said[0].split()[-1]


# 2. A camera whose pictures are pixelated sends them in tens, each request with a number.
images, labels, _ = embedded_images("test")
coarse = corrupt(images[:100], "pixelate", 5, seeds=range(100), constants="cifar")
requests = list(zip(coarse.split(10), labels.split(10), strict=False))
server, address = start()
with Client(address) as client:
    right = source_right = 0
    for number, (pixels, truth) in enumerate(requests):
        answer = client.predict("gate", pixels, sequence=number, source=True)
        right += sum(
            image.guesses[0].label == int(label)
            for image, label in zip(answer.images, truth, strict=True)
        )
        source_right += sum(
            image.source[0].label == int(label)
            for image, label in zip(answer.images, truth, strict=True)
        )
        while client.stream("gate").waiting:  # a camera would not wait; learning is behind answers
            time.sleep(0.01)
    last = answer.images[-1]
    print(f"gate: source {source_right}% right, answered {right}% right of 100 images")
    print(f"      the last one in domain {last.domain}, trust {last.trust:.1f}, {answer.version}")

    # 3. Keep this state under a name, and take it home as a file.
    client.checkpoint("gate", "pixelated")
    Path("gate.safetensors").write_bytes(client.export("gate"))

# 4. The power fails. What comes back is the newest whole state, and what was answered is known.
server.kill()
server.communicate()
server, address = start()
with Client(address) as client:
    stream = client.stream("gate")
    print(f"back: {stream.domains} domain, {stream.learned} requests learned, {stream.lost} lost")
    again = client.predict("gate", requests[3][0], sequence=3)
    learned = client.stream("gate").learned
    print(f"number 3 again: repeated {again.repeated}, {learned} requests learned")

    # 5. Somebody looks at it and decides.
    client.freeze("gate")
    client.rollback("gate", "pixelated")
    fresh = client.predict("gate", coarse[:10], top=0)
server.terminate()  # writes what is not written yet
server.communicate()

# 6. The file is an ordinary state: the library gives the same answers.
adapted = ostinato.adapt(embedded_model(), statistics=asset_path(STATISTICS))
adapted.load("gate.safetensors")
own = adapted.predict(coarse[:10]).softmax(1)
gaps = [
    abs(guess.probability - float(own[row, guess.label]))
    for row, image in enumerate(fresh.images)
    for guess in image.guesses
]
print(f"largest gap to the library: {max(gaps):.0e}")
assert max(gaps) < 1e-5
