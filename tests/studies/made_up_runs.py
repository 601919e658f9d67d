"""Runs written by hand, for sentences that must follow from numbers in both directions."""

import csv
import json
from pathlib import Path
from typing import Any

from silodp.studies.study import Cell, Found


def made_up(folder: Path, cell: Cell, lines: list[dict[str, Any]], **summary: Any) -> Found:
    """A finished run with these lines in metrics.jsonl (numbered from 1) and these facts in summary.json."""
    run = folder / "runs" / cell.folder_name
    run.mkdir(parents=True)
    usual = {"applied": True, "intermediaries": 1, "intermediaries_capped": False, "clip_bound": 1.0}
    usual |= dict.fromkeys(("xi", "phi", "lambda", "cosine_std"))
    records = [usual | {"round": number} | line for number, line in enumerate(lines, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    test = {"mean": {"dice": 0.5, "iou": 0.4} | summary.pop("test", {}), "hospitals": {}}
    facts = {
        "cohort": {"cohort": "made-up", "images": 100, "hospitals": 6},
        "members": 6,
        "rounds": len(lines),
        "parameters": 10_000,
        "epsilon": {"hospital": 20.0, "intermediary": 10.0, "covers_everything": False},
        "delta": 0.1,
        "intermediaries": records[-1]["intermediaries"],
        "test": {"last": test, "best": test},
        "best_round": 1,
        "wall_seconds": 1.0,
        "device": "none",
        "torch": "0",
    }
    (run / "summary.json").write_text(json.dumps(facts | summary))
    return Found(cell, run)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trained(out: Path) -> dict[Path, int]:
    """When each run ended; a run that is trained again has another time."""
    return {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/summary.json")}
