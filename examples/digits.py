"""Train on the embedded digits with one known label per image, and look at what the run knows."""

from __future__ import annotations

import labelgap as lg


def main() -> None:
    """Train for two epochs, measure, predict."""
    data = lg.load("digits", train=1000, val=200, test=400)
    run = lg.fit(data, method="ll-r", options={"delta_rel": 2}, epochs=2, out="runs/example")
    print(run, lg.write_report(run, data=data))

    assert data.test is not None
    probabilities = run.predict(data.test)
    value, counted = lg.average_precision(probabilities, data.test.labels, return_counted=True)
    print(f"test mAP {100 * value:.1f} over {counted} of {len(data.classes)} classes")


if __name__ == "__main__":
    main()
