"""A run on disk: its experiment, every round, every release, the checkpoint, the result.

    experiment.toml     fully resolved; running it again gives the same result
    versions.json       of silodp and PyTorch, from the start
    cohort.json         the hospitals' images: counts, classes, the hash of every file
    ledger.jsonl        every release, written before it is used
    metrics.jsonl       one line for each round
    checkpoint.pt       what the server needs to `resume`
    hospitals/          the hospitals' optimizer states, un-noised; deleted when the run is over
    summary.json        the result
    MODEL_CARD.md       a description of the model for its users
    model.safetensors   the last round's model; model-best.safetensors the best on validation data
    tensorboard/        with --tensorboard; mlflow.json with --mlflow; report.html by `silodp report`
    privacy-statement.json, .sig    by `silodp privacy RUN --sign`

The folder and its files are accessible to their owner only (0700, 0600). Files are replaced atomically
(write, fsync, rename).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.errors import InputError, cannot_write, short
from silodp.experiment import RUN_FORMAT, Experiment, ResolvedExperiment
from silodp.files import (
    parse_json,
    private_folder,
    private_open,
    read_plain,
    read_toml,
    replacing,
    take_lock,
    to_json,
    write_atomically,
    write_json,
)
from silodp.privacy.ledger import Ledger
from silodp.runs.places import PERSONAL, refuse_used
from silodp.runs.schema import (
    CohortFile,
    RoundRecord,
    Summary,
    VersionRecord,
    Versions,
    checked,
    read_as,
)
from silodp.runs.version import version

if TYPE_CHECKING:  # it takes seconds to import, and whoever reads a run's lines need not wait for it
    import torch
    from torch import Tensor

CHECKPOINT = {"identity", "ledger", "over", "state", "best"}
RESTORE = "restore the file"

_AFTER_A_CHECKPOINT = (
    "cohort.json", "metrics.jsonl", "model.safetensors", "model-best.safetensors", "MODEL_CARD.md",
    "summary.json",
)  # fmt: skip
"""Written only when there has been a checkpoint."""
_RESULTS = _AFTER_A_CHECKPOINT[2:]


@dataclass(frozen=True)
class CheckpointFacts:
    """From a checkpoint: the ledger's last hash, experiment.toml, and whether no round is left."""

    head: str
    experiment: str
    is_over: bool


class RunFolder:
    """The files of one run, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger: Ledger | None = None

    @classmethod
    @contextmanager
    def create(cls, path: Path, experiment: Experiment) -> Iterator[RunFolder]:
        """Yields a new run's folder, locked; refuses one that holds anything."""
        refuse_used(path)
        with cls(path)._locked() as folder:
            refuse_used(path)  # another process may have been quicker, and be done already
            (path / "versions.json").unlink(missing_ok=True)  # left by a kill
            folder.record_version(0)
            folder.save_experiment(experiment)  # from now on a run is there
            yield folder

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[RunFolder]:
        """Yields the folder of a run to continue, locked; refuses one without its ledger or checkpoint."""
        read_experiment(path)
        with cls(path)._locked() as folder:
            folder.refuse_lost_files()
            yield folder

    def refuse_lost_files(self) -> None:
        """Refuses a folder without its ledger or checkpoint if other files show that it made releases."""
        ledger = self.path / "ledger.jsonl"
        if (self.path / "checkpoint.pt").exists():
            if not ledger.exists():
                raise InputError(f"{ledger}: the ledger is missing; restore the file, or start a new run")
            return
        later = [name for name in _AFTER_A_CHECKPOINT if (self.path / name).exists()]
        if ledger.exists() and ledger.stat().st_size:
            later.insert(0, "ledger.jsonl")
        if later:
            raise InputError(
                f"{self.path}: its checkpoint is missing, but {later[0]} shows that it has trained; "
                "restore checkpoint.pt, or start a new run in another folder"
            )

    @contextmanager
    def _locked(self) -> Iterator[RunFolder]:
        """Locks the folder for this process until the block ends."""
        private_folder(self.path)
        for file in self.path.iterdir():  # of an earlier version, or copied here
            if file.is_file() and not file.is_symlink():
                file.chmod(0o600)
        with private_open(self.path / ".lock", "w") as lock:
            take_lock(lock, f"{self.path}: another process is running this run; wait for it")
            try:
                yield self
            finally:
                if self._ledger is not None:
                    self._ledger.close()

    def save_experiment(self, experiment: Experiment) -> None:
        write_atomically(self.path / "experiment.toml", experiment.to_toml().encode())

    def record_version(self, after_round: int) -> tuple[VersionRecord, VersionRecord] | None:
        """Records the versions of silodp and PyTorch; returns those before and now if they differ."""
        import torch

        path = self.path / "versions.json"
        known = read_as(Versions, path, RESTORE)["versions"] if path.exists() else []
        now: VersionRecord = {
            "silodp": version(), "torch": str(torch.__version__), "after_round": after_round
        }  # fmt: skip
        if known and all(known[-1][name] == now[name] for name in ("silodp", "torch")):
            return None
        write_json(path, {"versions": [*known, now]})
        return (known[-1], now) if known else None

    def remove_results(self) -> None:
        """Removes the files of the result of a run that continues."""
        for name in reversed(_RESULTS):
            (self.path / name).unlink(missing_ok=True)

    @property
    def hospitals(self) -> Path:
        """Folder in which hospitals of this process save what they carry from round to round."""
        return self.path / "hospitals"

    def ledger(self) -> Ledger:
        """The ledger, to write; closed when the folder is unlocked. `read_ledger` is for readers."""
        self._ledger = Ledger(self.path / "ledger.jsonl")
        return self._ledger

    def metrics(self) -> list[RoundRecord]:
        """The recorded rounds."""
        return [record for _, record in self._lines()]

    def _lines(self) -> Iterator[tuple[bytes, RoundRecord]]:
        """The lines of metrics.jsonl and what they say, without an incomplete last one."""
        path = self.path / "metrics.jsonl"
        lines = read_plain(path).splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            del lines[-1]
        for number, line in enumerate(lines, start=1):
            try:
                content = parse_json(line)
            except ValueError:
                content = None
            yield line, checked(RoundRecord, content, f"{path}, line {number}", RESTORE)

    def add_metrics(self, record: RoundRecord) -> None:
        path = self.path / "metrics.jsonl"
        try:
            with private_open(path, "a") as file:
                file.write(to_json(record) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from None

    def truncate_metrics(self, rounds: int) -> None:
        """Removes the rounds after `rounds`, which will be repeated."""
        kept = [line for line, record in self._lines() if record["round"] <= rounds]
        write_atomically(self.path / "metrics.jsonl", b"".join(kept))

    def save_checkpoint(self, content: dict[str, Any]) -> None:
        import torch

        with replacing(self.path / "checkpoint.pt") as file:
            torch.save(content, file)

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        from silodp.tensor_files import read_tensors

        path = self.path / "checkpoint.pt"
        return _checked_checkpoint(path, partial(read_tensors, device=device)) if path.exists() else None

    def checkpoint_facts(self) -> CheckpointFacts | None:
        """Reads a checkpoint without its tensors; None if there is none."""
        from silodp.tensor_files import read_plain_values

        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        content = _checked_checkpoint(path, read_plain_values)
        return CheckpointFacts(content["ledger"], content["identity"]["experiment"], bool(content["over"]))

    def save_model(self, name: str, tensors: dict[str, Tensor], about: dict[str, str]) -> str:
        """Writes a safetensors file with the metadata `about`; returns its SHA-256."""
        from safetensors.torch import save

        content = save(tensors, about)
        write_atomically(self.path / name, content)
        return hashlib.sha256(content).hexdigest()

    def save_cohort(self, description: dict[str, Any]) -> None:
        write_json(self.path / "cohort.json", description, indent=1)

    def cohort(self, way_out: str = RESTORE) -> CohortFile | None:
        """Reads cohort.json; None before the run has written it."""
        path = self.path / "cohort.json"
        return read_as(CohortFile, path, way_out) if path.exists() else None

    def summary(self, way_out: str = RESTORE) -> Summary | None:
        """Reads summary.json; None while the run is unfinished."""
        path = self.path / "summary.json"
        return read_as(Summary, path, way_out) if path.exists() else None

    def save_card(self, text: str) -> None:
        write_atomically(self.path / "MODEL_CARD.md", text.encode())

    def save_summary(self, summary: Summary) -> None:
        write_json(self.path / "summary.json", summary)


def _checked_checkpoint(path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    """Reads what `save_checkpoint` wrote, and checks its form."""
    damaged = InputError(f"{path}: not a checkpoint of silodp; restore it or start a new run")
    try:
        content = read(path)
        identity = content["identity"]
        texts = (content["ledger"], *(identity[part] for part in ("experiment", "cohort", "model")))
        if not content.keys() >= CHECKPOINT or not all(isinstance(text, str) for text in texts):
            raise damaged
    except Exception:  # PyTorch, pickle and zipfile each raise their own kinds on damaged files
        raise damaged from None
    return content  # type: ignore[no-any-return]


def but_for_rounds(toml: str) -> str:
    """An experiment's TOML without the number of rounds, which `resume` may change."""
    return re.sub(r"^rounds = \d+\n", "", toml, count=1, flags=re.MULTILINE)


def read_experiment(folder: Path) -> ResolvedExperiment:
    """The experiment of a run folder."""
    if not (folder / "experiment.toml").is_file():
        raise InputError(f"{folder}: no run is there (no experiment.toml); start one with `silodp run`")
    refuse_other_format(folder)
    return ResolvedExperiment.load(folder / "experiment.toml")


def read_summary(folder: Path) -> Summary:
    """summary.json of a run; an unfinished run is refused."""
    summary = RunFolder(folder).summary(f"remove it and write it anew with `silodp resume {folder}`")
    if summary is None:
        path = folder / "summary.json"
        raise InputError(f"{path}: the run has no result yet; finish it with `silodp resume {folder}`")
    return summary


def read_cohort_file(folder: Path) -> CohortFile:
    """cohort.json of a run; a run that has none yet is refused."""
    if (found := RunFolder(folder).cohort()) is not None:
        return found
    if (folder / "model.safetensors").exists():
        raise InputError(f"{folder / 'cohort.json'}: the file is missing; restore it from where the run is")
    raise InputError(f"{folder}: the run has no model yet; finish it with `silodp resume {folder}`")


def refuse_personal(folder: Path, what: str) -> None:
    """Refuses the folder of a personal model for what needs a run: it has none of its releases."""
    if (folder / PERSONAL).is_file():
        raise InputError(
            f"{folder}: a model of one hospital, by `silodp personalise`, which must stay there; {what}"
        )


class OtherFormat(InputError):
    """A run in the format of another version of silodp."""


def refuse_other_format(folder: Path) -> None:
    """Refuses a run folder in a format of another version, before anything else in it is read."""
    try:
        found = read_toml(folder / "experiment.toml").get("format", 1)
    except (FileNotFoundError, ValueError):
        return  # reading the settings reports it
    if found != RUN_FORMAT:
        raise OtherFormat(
            f"{folder}: a run of format {short(found)}, and this silodp reads {RUN_FORMAT}; use the version "
            "that trained it (summary.json names it), or train it again"
        )
