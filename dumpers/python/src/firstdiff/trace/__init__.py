"""Traces: one HDF5 file that holds what a run of a language model computed, schema `firstdiff-trace` version 1."""

from firstdiff.trace.arrays import Bfloat16, TraceError
from firstdiff.trace.reader import Reader
from firstdiff.trace.tensor import Step, Tensor
from firstdiff.trace.writer import TraceWarning, Writer

__all__ = ["Bfloat16", "Reader", "Step", "Tensor", "TraceError", "TraceWarning", "Writer"]
