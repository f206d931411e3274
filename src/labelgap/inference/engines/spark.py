"""Spark: scores as a column of a DataFrame, by ``pyspark.ml.functions.predict_batch_udf``.

.. code-block:: python

    predict = lg.spark.predict_udf("runs/a")
    spark.read.format("binaryFile").load("s3a://bucket/photos").withColumn("found", predict("content"))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.inference.predictor import Predictor
from labelgap.training.run import Run

if TYPE_CHECKING:
    from pyspark.sql import Column

Values = NDArray[Any]


def predict_udf(
    run: Run | str | os.PathLike[str], *, device: str = "auto", batch_size: int = 64, features: bool = False
) -> Callable[..., Column]:
    """Return a function of a column, of files as bytes or of addresses: a struct of what a ``Predictor`` returns.

    Its fields are ``score``, ``probability`` and ``label``, an entry for each class, ``error``, "" where the image can
    be read, and ``feature`` on request. The network is sent to the executors, which need labelgap installed.
    """
    try:
        from pyspark.ml.functions import predict_batch_udf
        from pyspark.sql.types import ArrayType, ByteType, FloatType, StringType, StructField, StructType
    except ImportError as error:
        raise InputError(f"Spark needs the package pyspark: pip install 'labelgap[spark]' ({error}).") from None
    predictor = Predictor(run, device=device, batch_size=batch_size, features=features)

    def load() -> Callable[[Values], dict[str, Values]]:
        def predict(items: Values) -> dict[str, Values]:
            found = predictor({"path" if isinstance(items[0], str) else "bytes": items})
            return {field.name: found[field.name] for field in fields}

        return predict

    fields = [StructField(name, ArrayType(FloatType())) for name in ("score", "probability")]
    fields += [StructField("label", ArrayType(ByteType())), StructField("error", StringType())]
    fields += [StructField("feature", ArrayType(FloatType()))] if features else []
    udf: Callable[..., Column] = predict_batch_udf(load, return_type=StructType(fields), batch_size=batch_size)
    return udf
