"""The Triton kernels of the losses (``labelgap.losses.kernels``), checked and measured against the same losses without.

    PYTHONPATH=src python -m benchmarks.loss_kernels                       # an NVIDIA GPU: checks, then measures
    PYTHONPATH=src python -m benchmarks.loss_kernels --network             # and a step of ResNet-50, 448 px, batch 16
    TRITON_INTERPRET=1 PYTHONPATH=src python -m benchmarks.loss_kernels    # no GPU: checks in Triton's interpreter

Values and gradients are compared with the losses without kernels, in float32: all label states, ties, first to last
epoch. Times are
of forward and backward pass, replayed from a CUDA graph. The *share of a copy's bandwidth* is the bytes that have to
move, 9 an entry (logits and labels read, the gradient written), per time, relative to the bytes per time of a copy of
the logits, whatever a kernel really moves: a selection in several passes has a lower share. Memory is what a step takes
at its peak beyond logits and gradient. What a kernel saves of a real step is the difference of two whole steps of a
linear head, 2,048 features × 5,000 classes with Adam, captured and replayed; of a network it is the difference of the
losses at 16 × 5,000 relative to the time of its step. A kernel that saves less than 1 % of every real step does not
pay.
"""
