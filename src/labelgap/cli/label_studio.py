"""``labelgap label-studio``: predictions in Label Studio, and its annotations as decisions."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Annotated, Literal

from labelgap.cli.options import RunDataPaths, RunFolder, option, with_options
from labelgap.cli.printing import print_fields
from labelgap.core.errors import LabelGapError


@with_options(run_data=RunDataPaths)
def label_studio(
    run: RunFolder,
    run_data: RunDataPaths,
    port: Annotated[int, option("Port.")] = 9090,
    host: Annotated[str, option("Address to listen on; other machines' need --password.")] = "127.0.0.1",
    password: Annotated[str, option("Password that Label Studio has to give; any user name.")] = "",
    unlisted: Annotated[
        Literal["unknown", "absent"], option("What a class is that an annotation does not choose: unknown or absent.")
    ] = "unknown",
) -> None:
    """Serve an audited run to Label Studio: predictions, and its annotations as decisions."""
    try:
        from labelgap.review import Review, open_review_folder
        from labelgap.review.label_studio import serve_backend
    except ModuleNotFoundError as error:
        raise LabelGapError(f"the server needs the package {error.name}: pip install 'labelgap[review]'.") from None
    with closing(Review(open_review_folder(run, run_data.data, **run_data.given()))) as review:
        serve_backend(review, host, port, unlisted, password, partial(_print_start, review))
        progress = review.progress()
    print(f"{progress.decided:,} of {progress.total:,} decided, {progress.found:,} missing labels found")


def _print_start(review: object, address: str) -> None:
    print_fields(
        ("connect", f"{address}    Settings, Model, Connect Model; also 'Use predictions to prelabel'"),
        ("order", "Data Manager, order by 'Prediction score': what probably misses a label comes first"),
        ("renew", "Data Manager, 'Retrieve predictions': the newest, which have learned from the annotations"),
        ("stop", "Ctrl-C; every annotation is stored when Label Studio sends it"),
    )
