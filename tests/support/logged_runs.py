"""A finished run of made-up figures, for the tests of its page."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.corpus.funnel import level_lines
from pipelines.files import storage
from pipelines.settings.load import dump, load


def made_samples() -> dict:
    """Six pairs that training has brought together, but for one, and three queries."""

    def model(number: int, apart: float, rank: int | None) -> dict:
        places = [[number / 6, -number / 6], [number / 6 + apart, 0.5 - number / 6]]
        return {"rank": rank, "places": places, "cosine": 1 - apart, "strange_cosine": 0.1}

    def found(rank: int | None) -> dict:
        documents = [{"text": f"document {n}", "right": n == rank} for n in (1, 2, 3)]
        return {"rank": rank, "documents": documents}

    last = 5
    return {
        "depth": 10,
        "changes": {"queries": 6, "better": 5, "worse": 0},
        "pairs": [
            {
                "texts": [f"query {number}", f"answer {number}"],
                "before": model(number, 0.4, 1 if number == last else 4),
                "after": model(number, 0.1, None if number == last else 1),
            }
            for number in range(6)
        ],
        "neighbours": [
            {"kind": kind, "text": f"asked {kind}", "right": "document 1"}
            | {"before": found(before), "after": found(after)}
            for kind, before, after in (("better", 3, 1), ("worse", 1, None), ("random", 2, 2))
        ],
    }


def made_jobs() -> dict:
    """A training that was killed, and a command that went on with it."""

    def job(name: str, began: str, seconds: float | None, **known: str) -> dict:
        given = {"command": None, "commit": None} | known
        return (
            {"name": name, "began": f"2026-11-23T{began}+00:00", "host": "node-1"}
            | given
            | {"seconds": seconds}
        )

    again = {"command": "sentence-pipelines run --config '<job>.yaml'"}
    again["commit"] = "16f5033c4333-dirty"
    return {
        "jobs": [
            job("train", "20:47:17", None),
            job("train", "20:50:00", 3740.0, **again),
            job("evaluate", "21:55:00", 95.0, **again),
        ],
        "preparation": [
            {"name": "corpus", "seconds": 60.25, "is_kept": True},
            {"name": "tokens", "seconds": 70.0, "is_kept": False},
        ],
        "prepared_folder": "../prepared",
    }


def write_run(tmp_path: Path) -> Path:
    """Writes the folder of a whole run, and the funnel of its corpus beside it."""
    folder = tmp_path / "first-run"
    folder.mkdir()
    storage.write_text(
        folder / "config.yaml",
        dump(load(None, ["training.engine=tensorflowonspark", "training.workers=2"])),
    )
    storage.write_json(folder / "environment.json", {"python": "3.11.7", "host <b>": "a & b"})
    lines = [
        {
            "step": 10 * (place + 1),
            "epoch": 0,
            "loss": 2.0 / (place + 1),
            "learning_rate": 1e-5,
            "gradient_norm": 3.0 / (place + 1),
            "examples_per_second": 50.0 + place,
            "tokens_per_second": 1500.0,
            "padding": 0.1,
            "data_wait": 0.02,
            "seconds": float(place),
            "staleness_mean": 0.0,
            "staleness_max": 0,
            "workers": [
                {"rank": rank, "examples": 640, "tokens": 9000, "seconds": 2.0}
                | {"data": 0.1, "arithmetic": 1.5, "communication": 0.25, "other": 0.15}
                for rank in (0, 1)
            ],
        }
        for place in range(12)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_text(folder / "metrics.jsonl", text)
    figures = {
        "before": {"retrieval": {"queries": 5, "documents": 9, "mrr@10": 40.0}},
        "after": {"retrieval": {"queries": 5, "documents": 9, "mrr@10": 38.75}},
        "training": {
            "steps": 120,
            "examples": 15360,
            "seconds": 3725.0,
            "examples_per_second": 55.5,
            "final_loss": 0.16667,
        },
    }
    storage.write_json(folder / "metrics.json", figures)
    storage.write_json(folder / "samples.json", made_samples())
    storage.write_json(folder / "jobs.json", made_jobs())
    (folder / "model").mkdir()
    funnel = level_lines("rows", ("read", 1200), {"<too short>": 200}, {"for pairs": 1000})
    path = tmp_path / "prepared" / "corpus" / "funnel.json"
    storage.write_json(path, [line.as_json() for line in funnel])
    storage.write_text(tmp_path / "prepared" / "report.html", "the corpus")
    return folder
