"""Make ``docs/gallery.md`` and its figures again: the gradient of every method against the logit.

    python benchmarks/gradient_gallery.py [FOLDER]

FOLDER is ``docs`` when not given. The gradients are those of the losses themselves, by automatic differentiation, in
the batch of ``labelgap.reporting.example_context``; nothing is random. It takes about a minute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import labelgap as lg
from labelgap.reporting import (
    GradientRegimes,
    example_context,
    gradient_comparison_figure,
    gradient_figure,
    gradient_regimes,
    page,
)
from labelgap.reporting.style import inline_svg

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "csl": {"likelihood_topk": 1},
    "epr": {"expected_positives": 1.5},
    "role": {"expected_positives": 1.5},
}
REVISED = {"curriculum": 6.0, "em-apl": -6.0, "ll-cp": 6.0, "ll-cp-abs": 6.0}
"""Methods that revise labels permanently, and a logit in the earlier epochs that makes them revise the entry."""

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "Known labels alone": {
        "iu": "Present is pulled up by 1 − p and absent pushed down by p; an unknown label has no gradient at all.",
        "bce": "The same loss as `iu`, for labels of which none is unknown.",
        "iun": "The same loss as `iu`, for one present and all absent labels observed.",
        "bce-ls": "Present crosses zero at p = 0.9 and absent at p = 0.1: a known label that is surer is drawn back.",
        "curriculum": "As `iu`, 2.8 times as strong, since 12 of the image's 20 labels are known or were added in "
        "earlier rounds; a label that was added as present (revised) has the gradient of a present one.",
        "imcl": "An unknown label is drawn to what similar images have; the jumps are logits at which other images "
        "become the most similar ones.",
    },
    "Unknown taken as absent": {
        "an": "Unknown and absent coincide: the likelier a missing label is, the harder it is pushed down.",
        "l1r": "The same as `an`: its penalty acts on the weights, not on the logits.",
        "l2r": "The same as `an`: its penalty acts on the weights, not on the logits.",
        "an-ls": "As `an`, but no logit is pushed further once p is 0.1 (absent, unknown) or 0.9 (present).",
        "ls": "The same loss as `an-ls`, under the name of another paper.",
        "n-ls": "Only the unknown curve is smoothed: it crosses zero at p = 0.1, known labels are those of `an`.",
        "wan": "Unknown has the shape of absent with 1/(K − 1) of its size, here 1/19.",
        "dw": "Unknown has the shape of absent with a tenth of its size.",
        "focal": "Labels that are already right have nearly no gradient, and negatives count a third of positives.",
        "asl": "Nothing pushes down below p = 0.2, and the push decreases again for a negative that looks present.",
        "hill": "The push on a negative is a hill with its top at p = ½: one that looks present is left alone.",
        "csl": "Unknown labels are focused so hard that the likeliest that still count are pushed by less than 0.005; "
        "those among the likeliest of the batch, right of the jump, are left out.",
    },
    "Unknown labels that look present are corrected": {
        "splc": "Above p = 0.6 an unknown label counts as present, and its gradient changes sign.",
        "ll-r": "As `an` up to the largest losses of the batch, which are left out: right of the jump the gradient is "
        "zero. Here it is at the third largest of 288 unknown losses, and it moves down with the epochs.",
        "ll-ct": "As `ll-r`, but right of the jump the label counts as present for this step.",
        "ll-cp": "As `ll-ct` with one label a step, and a label that was corrected once (revised) stays present at any "
        "logit.",
        "ll-r-abs": "As `ll-r`, with the jump where the loss is 1.4, whatever the other entries are.",
        "ll-ct-abs": "As `ll-ct`, with the jump where the loss is 1.4, whatever the other entries are.",
        "ll-cp-abs": "As `ll-cp`, with the jump where the loss is 1.4, whatever the other entries are.",
    },
    "Unknown as a state of its own": {
        "em": "Unknown is drawn to p = ½, weakly, and the less the surer the prediction is; known labels keep p − 1 "
        "and p, so that they lead the training (equations 9 to 11 of the paper).",
        "em-apl": "As `em`; a label that became a soft negative (revised, p = 0.0025 then) is pushed down to that p, "
        "with weight β = 0.02. Which labels those are depends on the other images of the class.",
        "entmin": "The opposite sign of `em`: an unknown label is driven to the side on which it already is.",
        "epr": "Unknown labels are pushed down where the batch has more positives than expected (up where fewer), most "
        "of all at p = ½; it is a small force on each.",
        "role": "Unknown is drawn to its own estimate, which has just been initialized here (near p = ½) and is "
        "learned in training.",
        "gr": "Unknown is pulled up at low and pushed down at middle logits, and left alone where it looks present; "
        "this changes with the epochs (figure below).",
        "gpr": "As `gr` where no teacher calls the label present, as here; else unknown is pulled up weakly.",
    },
    "Ranking and softmax": {
        "two-way": "The sum of the two halves below: one entry is compared with its image and with its class. Unknown "
        "labels stay out.",
        "two-way-sample": "The positive of an image is pulled up, the absent label pushed down, as far as they are on "
        "the wrong side of each other; T_P = 4 spreads the pull over a wide range of logits.",
        "two-way-class": "The same among the images of one class.",
        "softmax": "A positive is pulled up only until it has its equal share of the image's probability (two "
        "positives: one half each), then pushed down.",
        "pr": "On probabilities: every pair adds p(1 − p), and no margin switches a pair off; a positive has 18 of "
        "them here, an absent or unknown label one.",
        "warp": "A positive is pulled up by all labels that are not a margin of 1 below it, the more the worse its "
        "rank; a negative is pushed down by each positive that it comes near.",
        "rml": "As `warp`, but the pull of a hopeless positive and the push of a far too high negative are cut to a "
        "tenth.",
    },
}
CONTRASTS: Mapping[str, tuple[str, str]] = {
    "an-em": (
        "Zhou et al., figure 2: `em` leaves the known labels as they are and takes away nearly all of the pressure "
        "that `an` puts on unknown ones, most where they look present.",
        "an em",
    ),
    "two-way-temperature": (
        "Two-way's temperature T_P, in its half over images: a higher one also pulls at positives that are already "
        "high, and less at very low ones.",
        "two-way-sample temperature_pos 1 2 4",
    ),
    "two-way-margin": (
        "Two-way's margin ε (`bias`), with T_P = 1: a positive is pulled up to higher logits, and an absent label "
        "pushed down to lower ones.",
        "two-way-sample bias 0 1 2",
    ),
    "gr-epochs": (
        "`gr` over the epochs: the gradient of an unknown label keeps its shape and falls to a third.",
        "gr epoch 1 6 10",
    ),
}


def svg_document(figure: Figure, description: str) -> str:
    """Return a figure as the text of an SVG file, in the colors and the two themes of the pages.

    An SVG file in a web page or in Markdown follows the reader's theme, and has a background of its own. Coordinates
    are rounded to a tenth of a pixel, so that the file is small and the same on every machine.
    """
    css = (Path(page.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    theme = css[: css.index("\n* {")]  # the color variables, light and dark
    rules = f"{theme}\nsvg {{ color: var(--ink); background: var(--paper); font-family: system-ui, sans-serif; }}"

    def rounded(attribute: re.Match[str]) -> str:
        return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", attribute[0]).replace("  ", " ")

    text = re.sub(r'\b(?:d|x|y|transform)="[^"]*"', rounded, inline_svg(figure, "f", description))
    opening, rest = re.sub(r"\n *(<g />)?", "\n", text).split(">", 1)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"{opening.replace('<svg', f'<svg {spaces}')}>\n<style>{rules}</style>{rest}\n"


def contrast(recipe: str) -> dict[str, GradientRegimes]:
    """Return the gradients that a contrast shows: of methods, of values of an option, or of epochs."""
    method, *words = recipe.split()
    points = np.linspace(-6, 6, 61)
    if len(words) == 1:
        return {name: gradient_regimes(name, logits=points) for name in (method, *words)}
    option, *values = words
    if option == "epoch":
        contexts = {f"epoch {epoch} of 10": example_context(epoch=int(epoch)) for epoch in values}
        return {name: gradient_regimes(method, logits=points, context=each) for name, each in contexts.items()}
    fixed = {"temperature_pos": 1.0} if option == "bias" else {}
    settings = {f"{option}={value}": {**fixed, option: float(value)} for value in values}
    return {name: gradient_regimes(method, options, logits=points) for name, options in settings.items()}


def main() -> None:
    docs = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs")
    folder = docs / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [INTRODUCTION]
    for family, methods in FAMILIES.items():
        lines += [f"## {family}", ""]
        for name, sentence in methods.items():
            options = OPTIONS.get(name, {})
            title = ", ".join([name, *(f"{option}={value}" for option, value in options.items())])
            regimes = gradient_regimes(name, options)
            revised = None
            if name in REVISED:
                revised = gradient_regimes(name, options, context=example_context(earlier_logit=REVISED[name]))
            figure = gradient_figure(regimes, revised, title=title, width=6.6)
            text = svg_document(figure, f"Gradient of {name} against the logit")
            (folder / f"{name}.svg").write_text(text, encoding="utf-8")
            lines += [f"### `{name}`", "", sentence, ""]
            lines += [f"![Gradient of {name}](gallery/{name}.svg)", ""]
    lines += ["## Settings side by side", ""]
    for name, (sentence, recipe) in CONTRASTS.items():
        text = svg_document(gradient_comparison_figure(contrast(recipe)), f"Gradients compared: {recipe}")
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
        lines += [sentence, "", f"![Gradients compared: {recipe}](gallery/{name}.svg)", ""]
    (docs / "gallery.md").write_text("\n".join(lines), encoding="utf-8")
    print(f"{sum(map(len, FAMILIES.values()))} of {len(lg.methods())} methods: {docs / 'gallery.md'}")


INTRODUCTION = """# What every method does to a logit

Made by `python benchmarks/gradient_gallery.py`; do not edit. Each figure shows the derivative of the loss with
respect to the logit of one entry, for a present, an absent and an unknown label, by automatic differentiation.
**Above zero, training lowers the logit; below zero, it raises it.** It is the derivative of the mean loss times the
number of entries B·K; losses that average over images (two-way, softmax, ranking) have numbers about K times as large.
Where the gradient of an unknown label is small, a second panel shows it on its own scale.

Where the gradient depends on the other entries or on the epochs, the title says so, and the **context** is a batch of
16 images and 20 classes; every image has one present label and one absent label besides the entry, all others are
unknown; the other logits are normally distributed with mean 2 (present) or −3 and standard deviation 1.5; epoch 6 of
10, each earlier one a step on the same batch with the entry at logit 0; "revised" is the unknown label after a logit
of 6 (−6 in `em-apl`) in those epochs.

Of any method, option, batch and epoch, and of a loss of your own:

```python
from labelgap.reporting import example_context, gradient_figure, gradient_regimes

regimes = gradient_regimes("ll-ct", {"delta_rel": 0.4}, context=example_context(epoch=3, epochs=10))
regimes.logits, regimes.present, regimes.absent, regimes.unknown    # arrays
gradient_figure(regimes).savefig("ll-ct.pdf")
```

`gradient_comparison_figure({"name": regimes, …})` draws several in a panel for each state; `method` may be any `Loss`.
"""


if __name__ == "__main__":
    main()
