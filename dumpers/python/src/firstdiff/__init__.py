"""firstdiff from Python: record what a language model computes, read it back, and have it judged.

check, compare           a Verdict: what is wrong, where, and the bug's name
firstdiff.trace          Writer and Reader of traces
firstdiff.llama_cpp      every node of llama.cpp's graph, through llama-cpp-python
firstdiff.transformers   every module of a Hugging Face model
"""

from firstdiff.verdicts import FirstdiffError, Verdict, check, compare

__all__ = ["FirstdiffError", "Verdict", "check", "compare"]
__version__ = "0.1.0"
