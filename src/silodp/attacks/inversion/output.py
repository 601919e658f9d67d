"""The files of an attack: attack.json, attack.csv, attack.md and a sheet of originals and reconstructions."""

from __future__ import annotations

import io
import math
from pathlib import Path
from statistics import mean
from typing import Any

from silodp.attacks.inversion.result import AttackResult, Score
from silodp.files import private_folder, write_atomically, write_json
from silodp.runs.wording import show_epsilon
from silodp.tables import markdown_table, write_csv

WARNING = "The sheet shows patients' images: keep it, and pass it on, only as you would those."


def write_attack(result: AttackResult, out: Path) -> None:
    """Writes all files; attack.json comes last, so that where it exists the others do, too."""
    private_folder(out)
    write_csv(out / "attack.csv", _image_rows(result))
    write_atomically(out / "attack.md", (markdown(result) + "\n").encode())
    write_atomically(out / "sheet.png", _sheet(result))
    write_json(out / "attack.json", result.to_dict(), indent=1)


def shows_patients(result: AttackResult) -> bool:
    return not result.cohort.startswith("synthetic")


def rows(result: AttackResult) -> list[list[str]]:
    """A row for each view: description, both ε of that round (hospital first), SSIM, a blind guess, PSNR."""
    return [
        [
            name,
            score.words,
            show_epsilon(score.epsilon_hospital),
            show_epsilon(score.epsilon_intermediary),
            f"{score.mean_ssim:.3f}",
            f"{mean(score.baseline_ssim):.3f}",
            f"{mean(score.psnr):.1f}",
        ]
        for name, score in result.scores.items()
    ]


HEADER = ("view", "what the attacker sees", "ε hospital", "ε intermediary", "SSIM", "blind guess", "PSNR, dB")


def markdown(result: AttackResult) -> str:
    return f"{markdown_table(HEADER, rows(result))}\n\n{verdict(result)}"


def verdict(result: AttackResult) -> str:
    """What the numbers show; ε is of one round."""
    settings, scores = result.settings, result.scores
    sentences = [
        f"{settings.images} images of {result.victim} ({result.cohort}), {settings.batch} in a step, labels "
        f"{settings.labels}; SSIM 1 is the image itself; ε is of the one round that is attacked."
    ]
    control = scores.get("control")
    if control is not None:
        works = _works(control)
        sentences.append(
            f"The control reaches SSIM {control.mean_ssim:.3f}: "
            + (
                "the attack works where it should."
                if works
                else "the attack does not work even there, so that low figures elsewhere mean nothing."
            )
        )
    own = scores.get("own network")
    if own is not None:
        works = _works(own)
        sentences.append(
            f"On the experiment's own network it reaches {own.mean_ssim:.3f} without any noise"
            + (f" ({own.read})" if own.read else "")
            + (
                ": nothing protects there but noise."
                if works
                else ": that this attack fails there is no protection, and a low SSIM under noise there "
                "would prove nothing."
            )
        )
    return " ".join(sentences)


def _works(score: Score) -> bool:
    """Whether the image is recognisable and a blind guess is clearly worse."""
    return score.mean_ssim >= 0.5 and score.mean_ssim > mean(score.baseline_ssim) + 0.1


def _image_rows(result: AttackResult) -> list[dict[str, Any]]:
    """attack.csv: a row for each image of each view."""
    return [
        {
            "view": name,
            "epsilon_hospital": score.epsilon_hospital,
            "epsilon_intermediary": score.epsilon_intermediary,
            "image": number,
            **{column: getattr(score, column)[number] for column in ("ssim", "psnr", "baseline_ssim")},
        }
        for name, score in result.scores.items()
        for number in range(len(score.ssim))
    ]


def _sheet(result: AttackResult) -> bytes:
    """A picture with a row for each image: the original, then the reconstruction from each view."""
    from matplotlib.figure import Figure

    count, names = len(result.originals), list(result.scores)
    figure = Figure(figsize=(2.1 * (len(names) + 1), 2.3 * count + 1.0), layout="constrained")
    places = figure.subplots(count, len(names) + 1, squeeze=False)
    for row in range(count):
        _show(places[row][0], result.originals[row])
        places[row][0].set_ylabel(f"image {row + 1}")
        for column, name in enumerate(names, start=1):
            _show(places[row][column], result.guesses[name][row])
            places[row][column].set_xlabel(f"SSIM {result.scores[name].ssim[row]:.2f}")
    places[0][0].set_title("the image itself", fontsize=9)
    for column, name in enumerate(names, start=1):
        score = result.scores[name]
        bound = "no privacy"
        if math.isfinite(score.epsilon_hospital):
            bound = f"ε hospital {show_epsilon(score.epsilon_hospital)}\n"
            bound += f"ε intermediary {show_epsilon(score.epsilon_intermediary)}"
        words = score.words.replace(", ", ",\n")
        places[0][column].set_title(f"{name}\n{words}\n{bound}", fontsize=9)
    figure.suptitle("What an attacker reconstructs from one round (SSIM 1 is the image itself)", fontsize=11)
    if shows_patients(result):
        figure.supxlabel(WARNING, fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()


def _show(place: Any, image: Any) -> None:
    pixels = ((image + 1) / 2).clamp(0, 1).permute(1, 2, 0).numpy()
    place.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    place.set_xticks([])
    place.set_yticks([])
