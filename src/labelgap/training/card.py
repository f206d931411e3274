"""``MODEL_CARD.md``: what a stranger should know before using a run.

It begins with the YAML that the Hugging Face hub reads, so that a run can be published as it is, with the card as its
``README.md``. No number is in it that the known labels do not support.
"""

from __future__ import annotations

import json
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch

from labelgap.core.errors import LabelGapError
from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset
from labelgap.data.readers.features import FEATURES
from labelgap.losses import describe_method
from labelgap.models import create_backbone
from labelgap.training.card_results import RARE_CLASS_LIMIT, headline, results, revisions, thresholds
from labelgap.training.config.describe import PROTOCOLS, describe_settings, method_citation
from labelgap.training.config.rerun import train_command, train_script, without_directories
from labelgap.training.markdown import escape_markdown, join_escaped_names, markdown_table
from labelgap.training.run import Run

__all__ = ["render_model_card", "train_command", "write_model_card"]

MODEL_CARD_FILE: Final = "MODEL_CARD.md"


def write_model_card(run: Run, data: Dataset) -> None:
    """Write the card of a finished run."""
    write_text(run.path / MODEL_CARD_FILE, render_model_card(run, data))


def render_model_card(run: Run, data: Dataset) -> str:
    """Return the card of a finished run as Markdown.

    Args:
        run: with its metrics.
        data: what it was trained on.
    """
    name = run.path.resolve().name
    sections = {
        "": [
            f"# {escape_markdown(name)}: `{run.config.method}` on {escape_markdown(data.name)}",
            "",
            *_lead(run, data),
        ],
        "Results": results(run, data),
        "Use": _use(run, name),
        "What it is for, and where it ends": _limits(run, data),
        "Data": _data(data),
        "Method": _method(run),
        "Settings": _settings(run),
        "The same again": _again(run),
        "Licenses": _licenses(run, data),
    }
    body = ["\n".join([*([f"## {title}", ""] if title else []), *lines]) for title, lines in sections.items()]
    return "\n".join(["---", *_front_matter(run, data), "---", "", "\n\n".join(body), ""])


def _front_matter(run: Run, data: Dataset) -> list[str]:
    """Return what the hub reads; strings are written as JSON, which YAML can read."""
    tags = ["labelgap", "multi-label-classification", "missing-labels", run.config.method]
    lines = ["library_name: labelgap", f"license: {_license_of(data)}"]
    if run.config.backbone != FEATURES:
        lines.append("pipeline_tag: image-classification")
    lines += ["tags:", *(f"- {json.dumps(tag)}" for tag in tags)]
    test = run.metrics.get("test")
    if test is None or test["map"] is None:
        return lines
    counted = f"mAP over {test['classes_counted']} of {test['classes']} classes"
    name, kind = (json.dumps(" ".join(text.split())) for text in (data.name, str(data.recipe.get("name", "own"))))
    return [
        *lines,
        "model-index:",
        f"- name: {json.dumps(run.path.resolve().name)}",
        "  results:",
        "  - task: {type: image-classification, name: Multi-label image classification}",
        f"    dataset: {{type: {kind}, name: {name}, split: test}}",
        "    metrics:",
        f"    - {{type: mean_average_precision, name: {json.dumps(counted)}, value: {test['map']:.4f}}}",
    ]


def _license_of(data: Dataset) -> str:
    """Return what the data's recipe says of its license; what was learned from them can have no better one."""
    return json.dumps(str(data.recipe.get("license", "unknown")))


def _lead(run: Run, data: Dataset) -> list[str]:
    config = run.config
    present, absent, unknown = data.train.labels.counts().total
    many = len(config.classes)
    learned = f"It learned from {len(data.train):,} {_things(run)}s of {escape_markdown(data.name)}"
    if unknown:
        learned += f", on which {100 * unknown / (present + absent + unknown):.0f} % of the labels were unknown"
    lines = [
        f"Says of {_things(run, 'a')} which of {many:,} classes are in it, each on its own: {join_escaped_names(config.classes)}.",
        f"{learned}. {headline(run)}",
    ]
    if run.metrics.get("interrupted"):
        lines += ["", f"**Training was stopped after {run.metrics['epochs']} of {config.epochs} epochs.**"]
    return lines


def _things(run: Run, article: str = "") -> str:
    if run.config.backbone == FEATURES:
        return f"{article} feature vector".strip()
    return f"{article}n image" if article else "image"


def _use(run: Run, name: str) -> list[str]:
    folder, vectors = shlex.quote(name), run.config.backbone == FEATURES
    given = "vectors" if vectors else '["photo.jpg"]'
    shape = "(N, D) features" if vectors else "files or a split"
    commands = [
        f"labelgap predict {folder} {'features.npz' if vectors else 'photos/'}",
        f"labelgap evaluate {folder} {'features.npz' if vectors else 'tags.csv --images photos/'}",
        f"labelgap export {folder} --onnx model.onnx",
    ]
    lines = [
        "import labelgap as lg",
        "",
        f"run = lg.open_run({json.dumps(name, ensure_ascii=False)})",
        f"chances = run.predict({given})  # {shape} in; a column per class of run.config.classes out",
        "present = chances >= run.thresholds.values",
    ]
    return ["```", *commands, "```", "", "```python", *lines, "```", "", thresholds(run.thresholds)]


def _limits(run: Run, data: Dataset) -> list[str]:
    """Say what it is good for, and what it is not; what follows from the labels first."""
    counts = data.train.labels.counts()
    said = [
        "For suggesting tags, for sorting and searching, and for finding labels that were forgotten, on "
        f"{_things(run)}s like those it learned from; on others expect less. Where a mistake would hurt somebody, a "
        "person has to look.",
    ]
    if counts.total[2]:
        said.append(
            "With labels missing in training, its probabilities are scores: compare one with the threshold of its "
            "class, not with 0.5, and do not read it as a frequency."
        )
    never = [name for name, count in zip(data.classes, counts.present, strict=True) if count == 0]
    rare = [name for name, count in zip(data.classes, counts.present, strict=True) if 0 < count < RARE_CLASS_LIMIT]
    if never:
        said.append(f"Never seen present in training, so nothing can be expected: {join_escaped_names(never, 10)}.")
    if rare:
        said.append(
            f"Known to be present in fewer than {RARE_CLASS_LIMIT} training images, expect little: {join_escaped_names(rare, 10)}."
        )
    said.append("This is one training with one seed. How much another seed would differ was not measured.")
    return [f"- {sentence}" for sentence in said]


def _data(data: Dataset) -> list[str]:
    rows = []
    for split in data.splits:
        present, absent, unknown = split.labels.counts().total
        share = 100 * unknown / max(present + absent + unknown, 1)
        rows.append([split.name, f"{len(split):,}", f"{present:,}", f"{absent:,}", f"{unknown:,} ({share:.0f} %)"])
    truth = [split.name for split in data.splits if split.truth is not None and not split.labels.complete]
    lines = [f"- {escape_markdown(rule)}" for rule in data.rules]
    lines += ["", *markdown_table(("labels observed", "images", "present", "absent", "unknown"), rows)]
    if truth:
        lines += ["", f"What was hidden in {' and '.join(truth)} is known, and used for measuring only."]
    return lines


def _method(run: Run) -> list[str]:
    config, entry = run.config, describe_method(run.config.method)
    why = "It was asked for by name." if config.why == "as asked" else f"Chosen by `auto`: {config.why}."
    paper = method_citation(config.method)
    return [
        f"`{config.method}`: {entry.summary}. {why} What was trained: {PROTOCOLS[config.protocol]}.",
        *(["", f"It follows {paper}. If you use it, cite them."] if paper else []),
        "",
        revisions(run),
    ]


def _settings(run: Run) -> list[str]:
    size = None if run.config.backbone == FEATURES else _own_size(run)
    rows = [(name, escape_markdown(text)) for name, text in describe_settings(run.config, everything=True, size=size)]
    return markdown_table(("", ""), rows, numbers=False)


def _weights(run: Run) -> dict[str, Any]:
    """Return where the backbone's weights come from, and their license."""
    stored: dict[str, Any] | None = run.metrics.get("weights")
    if stored is not None:
        return stored
    return {"source": run.model.backbone.source, "license": run.model.backbone.license}


def _own_size(run: Run) -> int | None:
    """Return the side of the backbone's pictures; it is built without weights and without memory for that."""
    if "size" in _weights(run):
        return int(_weights(run)["size"])
    try:
        with torch.device("meta"):
            return create_backbone(run.config.backbone, pretrained=False).input.size
    except (LabelGapError, RuntimeError):  # not every network can be built so, and this is not worth a failure
        return None


def _again(run: Run) -> list[str]:
    shown = without_directories(run.config)
    command = train_command(shown)
    lines = ["```python", train_script(shown), "```"] if command is None else ["```", _wrapped(command), "```"]
    cut = " Folders are cut off here; `config.json` has them." if shown != run.config else ""
    made = f"Made with labelgap {_version()}, torch {torch.__version__} and Python {platform.python_version()}"
    device = (
        "On the same machine a CPU gives the same numbers again; on a GPU, or with other versions, they may differ."
    )
    return [*lines, "", f"{made}; its epochs took {_duration(run)}.{cut} {device}"]


def _wrapped(command: str) -> str:
    """Put a command on several lines, an option on each."""
    lines: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(map(shlex.join, lines))


def _licenses(run: Run, data: Dataset) -> list[str]:
    weights = _weights(run)
    said = data.recipe.get("license")
    known = (
        f"{escape_markdown(str(said))}."
        if said
        else "labelgap does not know their license. Ask, before you pass the weights on."
    )
    return [
        f"- Weights the backbone began with: {escape_markdown(weights['source'])}; {escape_markdown(weights['license'])}.",
        f"- Data ({escape_markdown(data.name)}): {known}",
        "- labelgap itself: Apache-2.0.",
    ]


def _version() -> str:
    try:
        return version("labelgap")
    except PackageNotFoundError:
        return "from source"


def _duration(run: Run) -> str:
    seconds = float(run.metrics["seconds"] or 0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
