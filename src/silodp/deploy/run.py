"""The coordinator's side of a run over a network: ask for facts, agree, train, collect statements.

Beside the usual files of a run:

    deployment/agreement.json     what all parties signed
    deployment/signatures.json    their signatures
    deployment/round/             contributions of the current round, as received
    deployment/noise-secret       secret for the remaining noise; deleted at the end
    deployment/statements/        each hospital's signed statement from its own ledger
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from silodp.deploy.agreement import Agreement, planned_events, portable, refuse_undeployable
from silodp.deploy.engine import Coordinator, RemoteEngine
from silodp.deploy.envelope import Reply
from silodp.deploy.keys import verified
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.facts import HospitalFacts
from silodp.federation import build_federation
from silodp.files import private_folder, read_plain, write_atomically, write_json
from silodp.privacy.accountants import hospital_epsilon
from silodp.runs.build import OnTrial, derive, device_named, rehearsed, with_origin
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.parts import Public, ServerParts
from silodp.runs.places import new_folder
from silodp.runs.result import Result
from silodp.runs.training import OnRound, resume_parts, train_parts


def run_deployed(
    experiment: Experiment,
    coordinator: Coordinator,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
    on_trial: OnTrial | None = None,
) -> Result:
    """Trains an experiment with the hospitals of a roster, from its first round.

    Args:
        experiment: of its cohort only image size and classes are used; the images are the hospitals' own.
        coordinator: who runs it.
        out: a new folder; default runs/NAME-1, -2, …
        device: for the server's model.
        on_round: called with each line of metrics.jsonl.
        on_trial: called with each trial of a rehearsal.
    """
    asked = deployable(experiment)
    refuse_undeployable(asked)
    with new_folder(out, experiment.name) as path:
        engine = _engine(coordinator, asked, secrets.token_hex(16), path)
        facts = collect_facts(engine, asked)
        prepared = rehearsed(with_origin(asked), facts, device, on_trial)
        public = derive(prepared, facts, device_named(device))
        agreement = make_agreement(engine, public)
        signatures = collect_signatures(engine, agreement)
        secret = secrets.token_bytes(32)

        def prepare() -> None:
            place = path / "deployment"
            private_folder(place)
            write_atomically(place / "noise-secret", secret)
            write_json(place / "signatures.json", signatures, indent=1)
            write_atomically(place / "agreement.json", agreement.to_bytes())

        parts = _parts(public, engine, secret)
        result = train_parts(parts, asked, path, on_round, prepare)
        _finish(engine, path)
        return result


def resume_deployed(
    folder: Path, coordinator: Coordinator, *, device: str = "auto", on_round: OnRound | None = None
) -> Result:
    """Continues after the last finished round; to the hospitals it is only a pause."""
    with RunFolder.open(folder) as files:
        experiment = read_experiment(folder)
        path = folder / "deployment" / "agreement.json"
        if not path.exists():
            raise InputError(f"{folder}: no hospital had agreed to it yet; start it again in a new folder")
        agreement = Agreement.from_bytes(read_plain(path))
        public = derive(with_origin(experiment), agreement.facts, device_named(device))
        if portable(public.experiment).to_toml() != agreement.experiment:
            raise InputError(f"{folder}: its experiment is not what was agreed on; restore experiment.toml")
        if coordinator.fingerprints != agreement.keys:
            raise InputError(f"{folder}: the roster is not the one that was agreed on; restore roster.toml")
        engine = _engine(coordinator, experiment, agreement.run, folder)
        secret_file = folder / "deployment" / "noise-secret"
        secret = read_plain(secret_file) if secret_file.exists() else secrets.token_bytes(32)
        result = resume_parts(_parts(public, engine, secret), files, on_round)
        _finish(engine, folder)
        return result


def deployable(experiment: Experiment) -> Experiment:
    """The experiment with the settings of a deployment: no diagnostics, noise from the system's entropy."""
    cohort = experiment.cohort
    size = getattr(cohort, "image_size", None) if "image_size" in cohort.model_fields_set else None
    elsewhere = {"kind": "deployed", "classes": cohort.classes, "image_size": size}
    changes: dict[str, object] = {
        "cohort": {name: value for name, value in elsewhere.items() if value is not None},
        "diagnostics": False,
        "checkpoint_every": 1,
    }
    if "entropy" not in experiment.privacy.model_fields_set:
        changes["privacy__entropy"] = "system"
    return experiment.change(**changes)


def collect_facts(engine: RemoteEngine, experiment: Experiment) -> list[HospitalFacts]:
    """Asks every hospital of the roster for its facts; all must answer, since they fix the denominator."""
    found: dict[str, HospitalFacts] = {}

    def take(name: str, reply: Reply) -> None:
        facts = HospitalFacts.from_dict(reply.about.get("facts"))
        if facts.name != name:
            raise InputError(f"its facts are about {facts.name!r:.60}")
        found[name] = facts
        if not reply.about.get("validation_metrics"):
            engine.evaluates.discard(name)

    about = {
        "experiment": portable(experiment).model_dump(mode="json", exclude_none=True, exclude_unset=True)
    }
    names = list(engine.coordinator.roster)
    refusals = engine.ask("facts", names, take, about, seconds=engine.coordinator.patience)
    _refuse_incomplete("send its facts", names, found, refusals)
    facts = [found[name] for name in names]
    forms = {(one.shape, one.storage, _targets(one), one.classes): one.name for one in facts}
    if len(forms) > 1:
        said = "; ".join(
            f"{name}: {storage} images of {' × '.join(map(str, shape))}, each with {targets}"
            for (shape, storage, targets, _), name in forms.items()
        )
        raise InputError(
            f"the hospitals' images differ ({said}); set cohort.image_size, name classes alike, or correct "
            "the data"
        )
    return facts


def _targets(facts: HospitalFacts) -> str:
    """What each image has, in words; a hospital need not have images of every class."""
    named = (
        f" ({', '.join(facts.classes[:6])}{', …' if len(facts.classes) > 6 else ''})" if facts.classes else ""
    )
    if facts.target == "class":
        return f"a class{named}"
    return "a mask" if facts.outputs == 1 else f"{facts.outputs} masks{named}"


def make_agreement(engine: RemoteEngine, public: Public) -> Agreement:
    """Makes the agreement that follows from the experiment and the facts."""
    delta = public.experiment.delta
    return Agreement(
        run=engine.run,
        experiment=portable(public.experiment).to_toml(),
        facts=public.facts,
        keys=engine.coordinator.fingerprints,
        model=public.model.identity,
        parameters=len(public.model),
        epsilon=hospital_epsilon(planned_events(public), delta),
        delta=delta,
    )


def collect_signatures(engine: RemoteEngine, agreement: Agreement) -> dict[str, str]:
    """Collects signatures, the coordinator's first; one hospital that does not sign ends the run."""
    coordinator, content = engine.coordinator, agreement.to_bytes()
    own = coordinator.key.sign(content).hex()
    signatures: dict[str, str] = {}

    def take(name: str, reply: Reply) -> None:
        refusal = "its signature on the agreement is not valid"
        signed = verified(reply.about.get("signature"), coordinator.roster[name], content, refusal)
        signatures[name] = signed.hex()

    names, about = list(coordinator.roster), {"signature": own}
    refusals = engine.ask("agree", names, take, about, content, seconds=coordinator.patience)
    _refuse_incomplete("sign the agreement", names, signatures, refusals)
    return {"coordinator": own, **{name: signatures[name] for name in names}}


def _refuse_incomplete(
    what: str, names: list[str], found: Mapping[str, object], refusals: Mapping[str, str]
) -> None:
    for name in names:
        if name not in found:
            why = refusals.get(name, "it does not answer; check that its site and its link are running")
            raise InputError(f"{name} does not {what}: {why}")


def _engine(coordinator: Coordinator, experiment: Experiment, run: str, path: Path) -> RemoteEngine:
    settings = experiment.deployment
    least = settings.min_hospitals
    if shares := experiment.privacy.shares(len(coordinator.roster)):  # fewer shares are not the full noise
        least = max(least or 0, shares)
    return RemoteEngine(coordinator, run, path / "deployment" / "round", settings.deadline, least)


def _parts(public: Public, engine: RemoteEngine, secret: bytes) -> ServerParts:
    engine.mechanism = public.mechanism
    outputs = max(one.outputs for one in public.facts)
    engine.metric_names = {
        thorough: public.task.metric_names(outputs, thorough=thorough) for thorough in (False, True)
    }
    federation = build_federation(
        public.experiment, public.facts, engine, public.mechanism, public.model.identity, noise_secret=secret
    )
    return ServerParts(**vars(public), engine=engine, federation=federation)


def _finish(engine: RemoteEngine, folder: Path) -> None:
    """Collects signed statements; hospitals that are away now are asked again by `--resume`."""
    coordinator = engine.coordinator
    place = folder / "deployment" / "statements"
    private_folder(place)
    (folder / "deployment" / "noise-secret").unlink(missing_ok=True)

    def take(name: str, reply: Reply) -> None:
        refusal = "its signature on its statement is not valid"
        signature = verified(reply.about.get("signature"), coordinator.roster[name], reply.payload, refusal)
        write_atomically(place / f"{name}.json.sig", signature)
        write_atomically(place / f"{name}.json", reply.payload)

    missing = [name for name in coordinator.roster if not (place / f"{name}.json").exists()]
    engine.ask("finish", missing, take, seconds=min(60.0, coordinator.patience))
